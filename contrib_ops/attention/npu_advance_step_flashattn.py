"""Advances the state of a decode step to the next: tokens, positions, lengths and slots.

Source: torch_npu.npu_advance_step_flashattn.
"""

from onnxruntime_npu.opdef import Sample, check, check_indices, npu_op, torch

_INT64 = ["int64"]

op = npu_op(
    "npu_advance_step_flashattn(Tensor(a!) input_tokens, Tensor sampled_token_ids,"
    " Tensor(b!) input_positions, Tensor(c!) seq_lens, Tensor(d!) slot_mapping,"
    " Tensor block_tables, int num_seqs, int num_queries, int block_size, *,"
    " Tensor? spec_token=None, Tensor? accepted_num=None) -> ()",
    onnx="NPUAdvanceStepFlashattn",
    outputs=["input_tokens_out", "input_positions_out", "seq_lens_out", "slot_mapping_out"],
    dtypes={
        "input_tokens": _INT64,
        "sampled_token_ids": _INT64,
        "input_positions": _INT64,
        "seq_lens": _INT64,
        "slot_mapping": _INT64,
        "block_tables": _INT64,
        "spec_token": _INT64,
        "accepted_num": _INT64,
    },
)


def _check(condition, message):
    check(condition, f"[npu_advance_step_flashattn] {message}")


@op.reference
def reference(
    input_tokens,
    sampled_token_ids,
    input_positions,
    seq_lens,
    slot_mapping,
    block_tables,
    num_seqs,
    num_queries,
    block_size,
    spec_token=None,
    accepted_num=None,
):
    """Return the new input_tokens, input_positions, seq_lens and slot_mapping.

    The slot of position p of sequence i is block_tables[i, p // block_size] * block_size +
    p % block_size; block_tables is [num_seqs, blocks].

    Without spec_token the four tensors are [num_seqs]. Of sequence i < num_queries the token is
    sampled_token_ids[i, 0], the position its old length, which grows by one; of the others, which
    pad the batch, token and position are 0, the slot is -1 and the length is unchanged.

    With spec_token [num_seqs, k] and accepted_num [num_seqs] they are [num_seqs * (k + 1)]: every
    position moves by 1 + accepted_num of its sequence, every length is its position + 1, and a
    sequence's tokens are the last non-negative one of sampled_token_ids[i] [k + 1], which a valid
    row always has, followed by spec_token[i].
    """
    _check(num_seqs > 0, f"expected num_seqs > 0, got {num_seqs}")
    _check(
        0 < num_queries <= num_seqs,
        f"expected num_queries in [1, {num_seqs}], got {num_queries}",
    )
    _check(block_size > 0, f"expected block_size > 0, got {block_size}")
    _check(
        (spec_token is None) == (accepted_num is None),
        "expected spec_token and accepted_num both or neither",
    )
    speculative = spec_token is not None
    _check(
        not speculative or (spec_token.dim() == 2 and spec_token.shape[0] == num_seqs),
        f"expected spec_token of shape [{num_seqs}, k], "
        f"got {speculative and list(spec_token.shape)}",
    )
    per_seq = spec_token.shape[1] + 1 if speculative else 1
    tokens = [num_seqs * per_seq]
    for name, t, shape in (
        ("input_tokens", input_tokens, tokens),
        ("input_positions", input_positions, tokens),
        ("seq_lens", seq_lens, tokens),
        ("slot_mapping", slot_mapping, tokens),
        (
            "sampled_token_ids",
            sampled_token_ids,
            [num_seqs if speculative else num_queries, per_seq],
        ),
        ("accepted_num", accepted_num, [num_seqs]),
    ):
        _check(
            t is None or list(t.shape) == shape,
            f"expected {name} of shape {shape}, got {t is not None and list(t.shape)}",
        )
    _check(
        block_tables.dim() == 2 and block_tables.shape[0] == num_seqs and block_tables.shape[1] > 0,
        f"expected block_tables of shape [{num_seqs}, blocks], got {list(block_tables.shape)}",
    )

    def slots(rows, positions):
        limit = min(block_tables.shape[1] * block_size, 2**63 - 1)
        what = "[npu_advance_step_flashattn] expected positions"
        check_indices(positions, 0, limit, what, note=", the blocks of block_tables")
        return rows.gather(1, positions // block_size) * block_size + positions % block_size

    if speculative:
        positions = input_positions.reshape(num_seqs, per_seq) + accepted_num[:, None] + 1
        place = torch.arange(per_seq, device=input_tokens.device)
        last = torch.where(sampled_token_ids >= 0, place, -1).amax(1, keepdim=True)
        last = torch.where(last < 0, per_seq - 1, last)
        new_tokens = torch.cat((sampled_token_ids.gather(1, last), spec_token), 1)
        new_slots = slots(block_tables, positions)
        return tuple(t.reshape(-1) for t in (new_tokens, positions, positions + 1, new_slots))
    position = seq_lens[:num_queries]
    padding = seq_lens.new_zeros(num_seqs - num_queries)
    new_slots = slots(block_tables[:num_queries], position[:, None]).reshape(-1)
    return (
        torch.cat((sampled_token_ids.reshape(-1), padding)),
        torch.cat((position, padding)),
        torch.cat((position + 1, seq_lens[num_queries:])),
        torch.cat((new_slots, padding - 1)),
    )


@op.function
def body(
    b,
    call,
    input_tokens,
    sampled_token_ids,
    input_positions,
    seq_lens,
    slot_mapping,
    block_tables,
    spec_token,
    accepted_num,
):
    seqs, queries, size = (call.attrs[n] for n in ("num_seqs", "num_queries", "block_size"))

    def slots(rows, positions):
        blocks = b.GatherElements(rows, b.Div(positions, size), axis=1)
        return b.Add(b.Mul(blocks, size), b.Mod(positions, size))

    if spec_token is not None:
        moved = b.Add(b.Unsqueeze(accepted_num, [1]), 1)
        positions = b.Add(b.Reshape(input_positions, [seqs, -1]), moved)
        per_seq = b.Squeeze(b.Slice(b.Shape(sampled_token_ids), [1], [2]), [0])
        place = b.Range(b.const(0, "int64"), per_seq, b.const(1, "int64"))
        none = b.const(-1, "int64")
        kept = b.Where(b.GreaterOrEqual(sampled_token_ids, 0), place, none)
        last = b.ReduceMax(kept, [1], keepdims=1)
        last = b.Where(b.Less(last, 0), b.Sub(per_seq, 1), last)
        tokens = b.Concat(b.GatherElements(sampled_token_ids, last, axis=1), spec_token, axis=1)
        found = (tokens, positions, b.Add(positions, 1), slots(block_tables, positions))
        return tuple(b.Reshape(v, [-1]) for v in found)
    position = b.Slice(seq_lens, [0], [queries])
    rows = b.Slice(block_tables, [0], [queries], [0])
    new_slots = b.Reshape(slots(rows, b.Unsqueeze(position, [1])), [-1])
    zeros = b.const([0] * (seqs - queries), "int64")
    return (
        b.Concat(b.Reshape(sampled_token_ids, [-1]), zeros, axis=0),
        b.Concat(position, zeros, axis=0),
        b.Concat(b.Add(position, 1), b.Slice(seq_lens, [queries], [seqs]), axis=0),
        b.Concat(new_slots, b.const([-1] * (seqs - queries), "int64"), axis=0),
    )


def _call(make, seqs, queries, block_size=4, blocks=6, **changes):
    state = {
        "input_tokens": make.ints(seqs, high=1000),
        "sampled_token_ids": make.ints(queries, 1, high=1000),
        "input_positions": make.ints(seqs, high=20),
        "seq_lens": make.ints(seqs, high=block_size * blocks),
        "slot_mapping": make.ints(seqs, high=100),
        "block_tables": make.permutation(seqs * blocks).reshape(seqs, blocks),
        "num_seqs": seqs,
        "num_queries": queries,
        "block_size": block_size,
    }
    return state | changes


def _speculative(make, seqs, k, **changes):
    tokens = seqs * (k + 1)
    sampled = make.ints(seqs, k + 1, high=1000)
    sampled[:, 1:][make.bools(seqs, k)] = -1
    state = {
        "input_tokens": make.ints(tokens, high=1000),
        "sampled_token_ids": sampled,
        "input_positions": make.ints(tokens, high=20),
        "seq_lens": make.ints(tokens, high=20),
        "slot_mapping": make.ints(tokens, high=100),
        "spec_token": make.ints(seqs, k, high=1000),
        "accepted_num": make.ints(seqs, high=k + 1),
    }
    return _call(make, seqs, seqs, blocks=8, **state) | changes


@op.samples
def samples(make):
    yield Sample(
        *(make.tensor(v) for v in ([5, 6, 7], [[50], [60]], [3, 7, 0], [4, 8, 1], [0, 0, 0])),
        make.tensor([[10, 11, 12], [20, 21, 22], [0, 0, 0]]),
        3,
        2,
        4,
        id="catalogue",
        expect=[[50, 60, 0], [4, 8, 0], [5, 9, 1], [44, 88, -1]],
    )
    yield Sample(**_call(make, 7, 7), id="no_padding")
    yield Sample(**_call(make, 9, 1, block_size=1, blocks=30), id="one_query")
    yield Sample(**_call(make, 5, 3, block_size=128, blocks=2), id="large_blocks")
    yield Sample(**_speculative(make, 4, 3), id="speculative")
    yield Sample(**_speculative(make, 1, 1), id="speculative_one")
    yield Sample(**_speculative(make, 3, 0), id="speculative_none")
    rejected = make.tensor([[5, -1, -1], [5, 6, -1], [-1, -1, -1]])
    yield Sample(**_speculative(make, 3, 2, sampled_token_ids=rejected), id="rejected")


def _refuse(id, match, make_call, *, needs_values=False):
    op.errors(
        make_call,
        match=rf"\[npu_advance_step_flashattn\] expected {match}",
        needs_values=needs_values,
        id=id,
    )


_refuse(
    "num_queries",
    r"num_queries in \[1, 4\], got 5",
    lambda make: Sample(**_call(make, 4, 4) | {"num_queries": 5}),
)
_refuse(
    "block_size",
    "block_size > 0, got 0",
    lambda make: Sample(**_call(make, 4, 4) | {"block_size": 0}),
)
_refuse(
    "tokens",
    r"input_positions of shape \[4\], got \[3\]",
    lambda make: Sample(**_call(make, 4, 3, input_positions=make.ints(3))),
)
_refuse(
    "sampled",
    r"sampled_token_ids of shape \[3, 1\], got \[4, 1\]",
    lambda make: Sample(**_call(make, 4, 3, sampled_token_ids=make.ints(4, 1))),
)
_refuse(
    "block_tables",
    r"block_tables of shape \[4, blocks\], got \[3, 6\]",
    lambda make: Sample(**_call(make, 4, 3, block_tables=make.ints(3, 6))),
)
_refuse(
    "one_of_two",
    "spec_token and accepted_num both or neither",
    lambda make: Sample(**_speculative(make, 4, 3, accepted_num=None)),
)
_refuse(
    "beyond_the_table",
    r"positions in \[0, 24\), the blocks of block_tables, got 24",
    lambda make: Sample(**_call(make, 4, 4, seq_lens=make.tensor([0, 1, 24, 2]))),
    needs_values=True,
)
_refuse(
    "negative_position",
    r"positions in \[0, 32\), the blocks of block_tables, got -1",
    lambda make: Sample(
        **_speculative(
            make,
            1,
            1,
            input_positions=make.tensor([0, -2]),
            accepted_num=make.tensor([0]),
        )
    ),
    needs_values=True,
)

"""The gated delta rule on states in blocks, one for each token, as speculative decoding has them.

Source: torch_npu.npu_recurrent_gated_delta_rule, and its form without a written argument,
torch_npu.npu_recurrent_gated_delta_rule_functional.
"""

from onnxruntime_npu.opdef import (
    FLOATS,
    INDICES,
    Sample,
    check,
    check_indices,
    is_traced,
    npu_op,
    torch,
    wide,
)

from ._delta_rule import Tokens, body_scan, body_sequences, check_call, ranges
from ._delta_samples import five_tokens, gates, query_key_value, refusals

_NAME = "npu_recurrent_gated_delta_rule"
_OPTIONS = (
    "Tensor? beta=None, float? scale=None, Tensor? actual_seq_lengths=None,"
    " Tensor? ssm_state_indices=None, Tensor? num_accepted_tokens=None, Tensor? g=None,"
    " Tensor? gk=None"
)
_NUMBERS = ("actual_seq_lengths", "ssm_state_indices", "num_accepted_tokens")

op = npu_op(
    f"{_NAME}(Tensor query, Tensor key, Tensor value, Tensor(a!) state, *, {_OPTIONS}) -> Tensor",
    onnx="NPURecurrentGatedDeltaRule",
    outputs=["out", "state_out"],
    dtypes={
        **{name: FLOATS for name in ("query", "key", "value", "state", "beta", "out")},
        **{name: INDICES for name in _NUMBERS},
        "g": ["float32"],
        "gk": ["float32"],
    },
)


def _check_state(state, value, width, indices, accepted, sequences):
    heads, value_width = value.shape[1:]
    check(
        state.dim() == 4 and list(state.shape[1:]) == [heads, value_width, width],
        f"[{_NAME}] expected state of shape [blocks, {heads}, {value_width}, {width}], "
        f"got {list(state.shape)}",
    )
    tokens = value.shape[0]
    check(
        indices is None or list(indices.shape) == [tokens],
        f"[{_NAME}] expected ssm_state_indices of shape [{tokens}], "
        f"got {indices is not None and list(indices.shape)}",
    )
    check(
        indices is not None or state.shape[0] >= tokens,
        f"[{_NAME}] expected state of at least {tokens} blocks without ssm_state_indices, "
        f"got {state.shape[0]}",
    )
    check(
        accepted is None or list(accepted.shape) == [sequences],
        f"[{_NAME}] expected num_accepted_tokens of shape [{sequences}], "
        f"got {accepted is not None and list(accepted.shape)}",
    )


def _first_tokens(found, accepted):
    """Return the token in whose block each sequence finds its state."""
    counts = [1] * len(found) if accepted is None else accepted.tolist()
    for i, ((begin, end), count) in enumerate(zip(found, counts, strict=True)):
        check(
            begin == end or 1 <= count <= end - begin,
            f"[{_NAME}] expected num_accepted_tokens in [1, {end - begin}] for sequence {i}, "
            f"got {count}",
        )
    return [begin + count - 1 for (begin, _), count in zip(found, counts, strict=True)]


@op.reference
def reference(
    query,
    key,
    value,
    state,
    beta=None,
    scale=None,
    actual_seq_lengths=None,
    ssm_state_indices=None,
    num_accepted_tokens=None,
    g=None,
    gk=None,
):
    """Return the result of each token, and state with the state after each token in its block.

    query, key: [T, Nk, Dk]; value: [T, Nv, Dv], of query's dtype; Nv is a multiple of Nk: head h
    reads query and key h // (Nv / Nk). state: [blocks, Nv, Dv, Dk]; ssm_state_indices: [T], the
    block of each token; without it token t has block t. actual_seq_lengths: [B], the sequences'
    lengths, in order, whose sum is T; without it there is one sequence. num_accepted_tokens: [B]: a
    sequence begins with the state in the block of its token num_accepted_tokens - 1, without it of
    its first token. beta: [T, Nv], 1 without it; g: float32 [T, Nv], gk: float32 [T, Nv, Dk], 0
    without them. scale: Dk^-0.5 without it. For each token S = exp(g + gk) S, where gk has an
    element for each column, S = S + beta (v - S k) k^T, out = scale S q. out: like value. All in
    float32; out and the states that are stored are rounded once, the state that the next token
    reads is not. Blocks that several sequences have get the state of any of them.
    """
    check_call(_NAME, query, key, value, actual_seq_lengths, beta=beta, g=g, gk=gk)
    width = query.shape[2]
    sequences = 1 if actual_seq_lengths is None else actual_seq_lengths.shape[0]
    _check_state(state, value, width, ssm_state_indices, num_accepted_tokens, sequences)
    compute = wide(query).dtype
    out, states = torch.empty_like(value, dtype=compute), state.to(compute, copy=True)
    found = ranges(_NAME, actual_seq_lengths, query.shape[0])
    numbers = (t for t in (ssm_state_indices, num_accepted_tokens) if t is not None)
    if found is not None and not any(map(is_traced, (query, *numbers))):
        first = _first_tokens(found, num_accepted_tokens)
        if ssm_state_indices is None:
            blocks = list(range(query.shape[0]))
        else:
            what = f"[{_NAME}] expected ssm_state_indices"
            check_indices(ssm_state_indices, 0, state.shape[0], what)
            blocks = ssm_state_indices.tolist()
        tokens = Tokens(query, key, value, beta, g, gk)
        for (begin, end), token in zip(found, first, strict=True):
            current = states[blocks[token]].clone() if end > begin else None
            for t in range(begin, end):
                current, out[t] = tokens.correct(current, t)
                states[blocks[t]] = current
    out = out * (max(width, 1) ** -0.5 if scale is None else scale)
    return out.to(value.dtype), states.to(state.dtype)


@op.function
def body(
    b,
    call,
    query,
    key,
    value,
    state,
    beta,
    actual_seq_lengths,
    ssm_state_indices,
    num_accepted_tokens,
    g,
    gk,
):
    """By Scan over all tokens, whose state is that of every block."""
    tokens = b.Squeeze(b.Shape(query, start=0, end=1), [0])
    one = b.const(1, "int64")
    places = b.Range(b.const(0, "int64"), tokens, one)
    sequence, begins = body_sequences(b, actual_seq_lengths, tokens)
    begin = b.Gather(begins, sequence, axis=0)
    first = begin
    if num_accepted_tokens is not None:
        accepted = b.Gather(b.Cast(num_accepted_tokens, to="int64"), sequence, axis=0)
        first = b.Add(begin, b.Sub(accepted, one))
    before = b.Where(b.Equal(places, begin), first, b.Sub(places, one))
    after = places
    if ssm_state_indices is not None:
        after = b.Cast(ssm_state_indices, to="int64")
        before = b.Gather(after, before, axis=0)
    scale = call.attrs["scale"]
    if scale is None:
        width = b.Cast(b.Shape(query, start=2, end=3), to="float32")
        scale = b.Reciprocal(b.Sqrt(b.Max(width, 1.0)))
    states = b.Cast(state, to="float32")
    rows = before, after
    states, out = body_scan(b, query, key, value, beta, g, gk, states, rows, scale)
    return b.Cast(out, to=call.dtype("value")), b.Cast(states, to=call.dtype("state"))


@op.partner(
    f"{_NAME}_functional(Tensor query, Tensor key, Tensor value, Tensor state, *, {_OPTIONS})"
    " -> (Tensor, Tensor)"
)
def npu_recurrent_gated_delta_rule_functional(query, key, value, state, **options):
    """Return the result of each token and the new state; the one that is given stays."""
    state = state.clone()
    return torch.ops.npu.npu_recurrent_gated_delta_rule(query, key, value, state, **options), state


def _call(make, tokens, blocks, *sizes):
    """Return query, key, value and state."""
    query, key, value = query_key_value(make, tokens, *sizes)
    return query, key, value, make(blocks, *value.shape[1:], query.shape[2])


@op.samples
def samples(make):
    # The second token is read from: S = [2, 4]^T [1, 0]; then S / 2 + 0.5 ([3, 1] - [1, 2]) [1, 0].
    half = -0.6931471805599453
    yield Sample(
        make.tensor([[[1.0, 3.0]], [[1.0, 0.0]]]),
        make.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]),
        make.tensor([[[3.0, 1.0]], [[2.0, 1.5]]]),
        make.tensor([[[[2.0, 0.0], [4.0, 0.0]]], [[[0.0] * 2] * 2], [[[7.0] * 2] * 2]]),
        beta=make.tensor([[0.5], [1.0]]),
        g=make.tensor([[half], [0.0]], "float32"),
        scale=0.5,
        actual_seq_lengths=make.tensor([2], "int32"),
        ssm_state_indices=make.tensor([1, 0], "int32"),
        num_accepted_tokens=make.tensor([2], "int32"),
        id="by_hand",
        expect=[
            [[[1.0, 0.75]], [[1.0, 0.75]]],
            [[[[2.0, 0.0], [1.5, 0.0]]], [[[2.0, 0.0], [1.5, 0.0]]], [[[7.0] * 2] * 2]],
        ],
    )
    yield Sample(*_call(make, 3, 4), id="no_options")
    speculative = {
        "actual_seq_lengths": make.tensor([3, 0, 2, 1], "int32"),
        "ssm_state_indices": make.tensor([8, 1, 4, 0, 2, 6], "int32"),
        "num_accepted_tokens": make.tensor([2, 9, 1, 1], "int32"),
    }
    yield Sample(*_call(make, 6, 9), **gates(make, 6), **speculative, id="speculative")
    by_element = make.uniform(6, 4, 8, low=-1.0, dtype="float32")
    yield Sample(
        *_call(make, 6, 9),
        **gates(make, 6),
        **speculative,
        gk=by_element,
        scale=1.0,
        id="gates_of_elements",
    )
    yield Sample(*_call(make, 6, 6), gk=by_element, id="only_gates_of_elements")
    query, key, value, state = _call(make, 3, 5, 1, 3, 7, 5)
    yield Sample(
        query,
        key,
        value,
        state.float(),
        **gates(make, 3, 3),
        actual_seq_lengths=make.tensor([1, 1, 1], "int64"),
        ssm_state_indices=make.tensor([3, 0, 4], "int64"),
        id="one_token_each_float32_state",
    )
    yield Sample(
        *_call(make, 5, 3, 2, 4, 32, 37),
        **gates(make, 5),
        actual_seq_lengths=make.tensor([2, 3], "int32"),
        ssm_state_indices=make.tensor([2, 2, 0, 0, 0], "int32"),
        id="one_block_per_sequence",
    )
    yield Sample(
        *_call(make, 0, 2),
        actual_seq_lengths=make.tensor([0], "int32"),
        ssm_state_indices=make.ints(0, dtype="int32"),
        id="no_tokens",
    )


def _arguments(make):
    return {
        **five_tokens(make),
        "state": make(6, 4, 6, 8),
        "ssm_state_indices": make.tensor([0, 1, 2, 3, 4], "int32"),
        "num_accepted_tokens": make.tensor([1, 3], "int32"),
    }


_refuse = refusals(op, _NAME, _arguments)
_refuse(
    "state",
    r"state of shape \[blocks, 4, 6, 8\], got \[6, 4, 8, 6\]",
    lambda make: {"state": make(6, 4, 8, 6)},
)
_refuse(
    "few_blocks",
    r"state of at least 5 blocks without ssm_state_indices, got 4",
    lambda make: {"state": make(4, 4, 6, 8), "ssm_state_indices": None},
)
_refuse(
    "gk",
    r"gk of shape \[5, 4, 8\], got \[5, 4\]",
    lambda make: {"gk": make(5, 4, dtype="float32")},
)
for _id, _name, _shape, _values in [
    ("indices", "ssm_state_indices", r"\[5\], got \[4\]", [0, 1, 2, 3]),
    ("accepted", "num_accepted_tokens", r"\[2\], got \[3\]", [1, 1, 1]),
]:
    _refuse(
        _id,
        f"{_name} of shape {_shape}",
        lambda make, name=_name, values=_values: {name: make.tensor(values, "int32")},
    )
for _id, _name, _match, _values in [
    ("index", "ssm_state_indices", r"in \[0, 6\), got 6", [0, 1, 2, 3, 6]),
    ("negative_index", "ssm_state_indices", r"in \[0, 6\), got -1", [0, -1, 2, 3, 4]),
    ("none_accepted", "num_accepted_tokens", r"in \[1, 2\] for sequence 0, got 0", [0, 1]),
    ("many_accepted", "num_accepted_tokens", r"in \[1, 3\] for sequence 1, got 4", [1, 4]),
    ("length", "actual_seq_lengths", r"to divide 5 tokens in order, .*, got -1", [-1, 6]),
    ("lengths", "actual_seq_lengths", r"whose sum is 5, got 4", [2, 2]),
]:
    _refuse(
        _id,
        f"{_name} {_match}",
        lambda make, name=_name, values=_values: {name: make.tensor(values, "int32")},
        needs_values=True,
    )

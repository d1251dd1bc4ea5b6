"""The gated delta rule over the tokens of several sequences, as linear attention has it.

Source: torch_npu.npu_chunk_gated_delta_rule.
"""

from onnxruntime_npu.opdef import (
    ABSENT,
    FLOATS,
    INDICES,
    Sample,
    check,
    is_traced,
    npu_op,
    torch,
    wide,
)

from ._delta_rule import Tokens, body_scan, body_sequences, check_call, ranges
from ._delta_samples import five_tokens, gates, query_key_value, refusals

_NAME = "npu_chunk_gated_delta_rule"

op = npu_op(
    f"{_NAME}(Tensor query, Tensor key, Tensor value, *, Tensor? beta=None,"
    " Tensor? initial_state=None, Tensor? actual_seq_lengths=None, float? scale=None,"
    " Tensor? g=None) -> (Tensor, Tensor)",
    onnx="NPUChunkGatedDeltaRule",
    outputs=["out", "final_state"],
    dtypes={
        **{name: FLOATS for name in ("query", "key", "value", "beta", "initial_state")},
        "actual_seq_lengths": INDICES,
        "g": ["float32"],
        "out": FLOATS,
        "final_state": FLOATS,
    },
    typings=[
        {"query": dtype, "out": dtype, "initial_state": state, "final_state": final}
        for dtype in FLOATS
        for state, final in [(ABSENT, "float32"), *((state, state) for state in FLOATS)]
    ],
)


@op.reference
def reference(
    query,
    key,
    value,
    beta=None,
    initial_state=None,
    actual_seq_lengths=None,
    scale=None,
    g=None,
):
    """Return the result of each token and the state after the last token of each sequence.

    query, key: [T, Nk, Dk]; value: [T, Nv, Dv], of query's dtype; Nv is a multiple of Nk: head h
    reads query and key h // (Nv / Nk). actual_seq_lengths: [B], the sequences' lengths, in order,
    whose sum is T; without it there is one sequence. beta: [T, Nv], 1 without it; g: float32 [T,
    Nv], 0 without it. initial_state: [B, Nv, Dv, Dk]; without it 0, and final_state is float32.
    scale: 1 without it. For each token of a sequence S = exp(g) S, S = S + beta (v - S k) k^T,
    out = scale S q. out: like value; final_state: like initial_state. All in float32, rounded once.
    torch_npu takes no call without beta, initial_state, actual_seq_lengths and scale.
    """
    check_call(_NAME, query, key, value, actual_seq_lengths, beta=beta, g=g)
    heads, width = value.shape[1], query.shape[2]
    sequences = 1 if actual_seq_lengths is None else actual_seq_lengths.shape[0]
    shape = [sequences, heads, value.shape[2], width]
    check(
        initial_state is None or list(initial_state.shape) == shape,
        f"[{_NAME}] expected initial_state of shape {shape}, "
        f"got {initial_state is not None and list(initial_state.shape)}",
    )
    compute = wide(query).dtype
    out = torch.empty_like(value, dtype=compute)
    if initial_state is None:
        states = query.new_zeros(shape, dtype=compute)
    else:
        states = initial_state.to(compute, copy=True)
    found = ranges(_NAME, actual_seq_lengths, query.shape[0])
    if found is not None and not is_traced(query):
        tokens = Tokens(query, key, value, beta, g)
        for i, (begin, end) in enumerate(found):
            for t in range(begin, end):
                states[i], out[t] = tokens.correct(states[i], t)
    out = out * (1.0 if scale is None else scale)
    return out.to(value.dtype), states if initial_state is None else states.to(initial_state.dtype)


@op.function
def body(b, call, query, key, value, beta, initial_state, actual_seq_lengths, g):
    """By Scan over all tokens, whose state is that of every sequence."""
    tokens = b.Squeeze(b.Shape(query, start=0, end=1), [0])
    sequence, begins = body_sequences(b, actual_seq_lengths, tokens)
    if initial_state is None:
        sizes = b.Shape(begins), b.Shape(value, start=1), b.Shape(query, start=2)
        states = b.Expand(0.0, b.Concat(*sizes, axis=0))
    else:
        states = b.Cast(initial_state, to="float32")
    scale = 1.0 if call.attrs["scale"] is None else call.attrs["scale"]
    rows = sequence, sequence
    states, out = body_scan(b, query, key, value, beta, g, None, states, rows, scale)
    state_type = "float32" if initial_state is None else call.dtype("initial_state")
    return b.Cast(out, to=call.dtype("value")), b.Cast(states, to=state_type)


@op.samples
def samples(make):
    # Two tokens: S = 1 * [2, 4]^T [1, 0]; then S / 2 + 0.5 ([3, 1] - [1, 2]) [1, 0] = [2, 1.5].
    half = -0.6931471805599453
    yield Sample(
        make.tensor([[[2.0, 5.0]], [[1.0, 3.0]]]),
        make.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]),
        make.tensor([[[2.0, 4.0]], [[3.0, 1.0]]]),
        beta=make.tensor([[1.0], [0.5]]),
        g=make.tensor([[0.0], [half]], "float32"),
        scale=0.5,
        id="by_hand",
        expect=[[[[2.0, 4.0]], [[1.0, 0.75]]], [[[[2.0, 0.0], [1.5, 0.0]]]]],
    )
    yield Sample(*query_key_value(make, 5), id="no_options")
    yield Sample(
        *query_key_value(make, 7),
        **gates(make, 7),
        initial_state=make(3, 4, 6, 8),
        actual_seq_lengths=make.tensor([4, 0, 3], "int32"),
        scale=8**-0.5,
        id="sequences",
    )
    yield Sample(
        *query_key_value(make, 3, 1, 3, 7, 5),
        **gates(make, 3, 3),
        initial_state=make(3, 3, 5, 7, dtype="float32"),
        actual_seq_lengths=make.tensor([1, 1, 1], "int64"),
        id="one_token_each_float32_state",
    )
    others = [t for t in FLOATS if t != make.dtype]
    yield Sample(
        *query_key_value(make, 4, 2, 2),
        beta=make.uniform(4, 2, dtype=others[0]),
        initial_state=make(1, 2, 6, 8, dtype=others[1]),
        id="other_types",
    )
    yield Sample(
        *query_key_value(make, 9, 2, 4, 32, 37),
        **gates(make, 9),
        initial_state=make(2, 4, 37, 32),
        actual_seq_lengths=make.tensor([2, 7], "int32"),
        scale=32**-0.5,
        id="blocks_of_rows",
    )
    yield Sample(
        *query_key_value(make, 40, 2, 4, 64, 64),
        **gates(make, 40),
        scale=0.125,
        id="threads",
    )
    yield Sample(
        *query_key_value(make, 0),
        actual_seq_lengths=make.tensor([0, 0], "int32"),
        initial_state=make(2, 4, 6, 8),
        id="no_tokens",
    )
    yield Sample(
        *query_key_value(make, 0), actual_seq_lengths=make.ints(0, dtype="int32"), id="no_sequences"
    )
    yield Sample(*(t.transpose(0, 1) for t in query_key_value(make, 4, 4, 4)), id="not_contiguous")


def _arguments(make):
    return {**five_tokens(make), "initial_state": make(2, 4, 6, 8)}


_refuse = refusals(op, _NAME, _arguments)
_refuse("query", r"query of shape \[T, Nk, Dk\], got \[5, 8\]", lambda make: {"query": make(5, 8)})
_refuse(
    "key",
    r"key of query's shape \[5, 2, 8\], got \[5, 2, 7\]",
    lambda make: {"key": make(5, 2, 7)},
)
_refuse(
    "value",
    r"value of shape \[5, Nv, Dv\], got \[4, 4, 6\]",
    lambda make: {"value": make(4, 4, 6)},
)
_refuse(
    "heads",
    r"heads of value that are a multiple of query's 2, got 3",
    lambda make: {"value": make(5, 3, 6)},
)
_refuse(
    "dtype",
    r"key and value of query's dtype .*float16, got .*float32 and .*float16",
    lambda make: {
        "query": make(5, 2, 8, dtype="float16"),
        "key": make(5, 2, 8, dtype="float32"),
        "value": make(5, 4, 6, dtype="float16"),
    },
)
_refuse("beta", r"beta of shape \[5, 4\], got \[5, 2\]", lambda make: {"beta": make(5, 2)})
_refuse(
    "g",
    r"g of shape \[5, 4\], got \[5, 4, 1\]",
    lambda make: {"g": make(5, 4, 1, dtype="float32")},
)
_refuse(
    "state",
    r"initial_state of shape \[2, 4, 6, 8\], got \[2, 4, 8, 6\]",
    lambda make: {"initial_state": make(2, 4, 8, 6)},
)
_refuse(
    "lengths",
    r"actual_seq_lengths of shape \[B\], got \[2, 1\]",
    lambda make: {"actual_seq_lengths": make.tensor([[2], [3]], "int32")},
)
for _id, _lengths, _match in [
    ("negative_length", [-1, 6], r"divide 5 tokens in order, entry 0 in \[0, 5\], got -1"),
    ("long_sequence", [3, 3], r"divide 5 tokens in order, entry 1 in \[0, 2\], got 3"),
]:
    _refuse(
        _id,
        f"actual_seq_lengths to {_match}",
        lambda make, lengths=_lengths: {"actual_seq_lengths": make.tensor(lengths, "int32")},
        needs_values=True,
    )
_refuse(
    "short_sequences",
    "actual_seq_lengths whose sum is 5, got 4",
    lambda make: {"actual_seq_lengths": make.tensor([2, 2], "int32")},
    needs_values=True,
)

"""The gated delta rule: linear attention whose state is corrected by each token."""

from onnxruntime_npu.opdef import check, is_traced


def check_call(name, query, key, value, lengths, **gates):
    """Refuse tensors whose shapes or dtypes differ from those of the others."""
    check(query.dim() == 3, f"[{name}] expected query of shape [T, Nk, Dk], got {_shape(query)}")
    check(
        key.shape == query.shape,
        f"[{name}] expected key of query's shape {_shape(query)}, got {_shape(key)}",
    )
    tokens, key_heads, width = query.shape
    check(
        value.dim() == 3 and value.shape[0] == tokens,
        f"[{name}] expected value of shape [{tokens}, Nv, Dv], got {_shape(value)}",
    )
    heads = value.shape[1]
    check(
        key_heads > 0 and heads % key_heads == 0,
        f"[{name}] expected heads of value that are a multiple of query's {key_heads}, got {heads}",
    )
    check(
        key.dtype == query.dtype and value.dtype == query.dtype,
        f"[{name}] expected key and value of query's dtype {query.dtype}, "
        f"got {key.dtype} and {value.dtype}",
    )
    for gate, tensor in gates.items():
        shape = [tokens, heads, width] if gate == "gk" else [tokens, heads]
        check(
            tensor is None or _shape(tensor) == shape,
            f"[{name}] expected {gate} of shape {shape}, "
            f"got {tensor is not None and _shape(tensor)}",
        )
    check(
        lengths is None or lengths.dim() == 1,
        f"[{name}] expected actual_seq_lengths of shape [B], "
        f"got {lengths is not None and _shape(lengths)}",
    )


def _shape(tensor):
    return list(tensor.shape)


def ranges(name, lengths, tokens):
    """Return where each sequence begins and ends, or None if the lengths have no values."""
    if lengths is None:
        return [(0, tokens)]
    if is_traced(lengths):
        return None
    begin, found = 0, []
    for i, length in enumerate(lengths.tolist()):
        check(
            0 <= length <= tokens - begin,
            f"[{name}] expected actual_seq_lengths to divide {tokens} tokens in order, entry {i} "
            f"in [0, {tokens - begin}], got {length}",
        )
        found.append((begin, begin + length))
        begin += length
    check(
        begin == tokens,
        f"[{name}] expected actual_seq_lengths whose sum is {tokens}, got {begin}",
    )
    return found


def of_value_heads(tensor, heads):
    """Return the queries or keys [T, Nk, Dk] of each value head, [T, Nv, Dk]."""
    return tensor.repeat_interleave(heads // tensor.shape[1], 1)


def correct(state, query, key, value, beta, decay):
    """Return the state [Nv, Dv, Dk] after a token and its result [Nv, Dv].

    query, key: [Nv, Dk]; value: [Nv, Dv]; beta: [Nv]; decay: [Nv, Dk], or [Nv, 1].
    """
    state = state * decay[:, None]
    error = value - (state @ key[:, :, None])[:, :, 0]
    state = state + (beta[:, None] * error)[:, :, None] * key[:, None]
    return state, (state @ query[:, :, None])[:, :, 0]


def body_scan(b, query, key, value, beta, gates, states, rows, scale):
    """Build the recurrence in float32: the states and the results [T, Nv, Dv].

    query, key: [T, Nk, Dk]; value: [T, Nv, Dv]; beta: [T, Nv] or None; gates: of [T, Nv, 1] or [T,
    Nv, Dk], those that there are; states: [N, Nv, Dv, Dk]; rows: int64 [T], the state before each
    token and that after it.
    """
    heads, width = b.Shape(value, start=1, end=2), b.Shape(key, start=2, end=3)
    tokens = b.Shape(key, start=0, end=1)
    shared = b.Div(heads, b.Shape(key, start=1, end=2))
    places = b.Concat(tokens, b.Shape(key, start=1, end=2), shared, width, axis=0)

    def of_heads(tensor):
        wide = b.Expand(b.Unsqueeze(tensor, [2]), places)
        return b.Reshape(wide, b.Concat(tokens, heads, width, axis=0), allowzero=1)

    # Scan has one more step, with zeros: its state is number 0, which belongs to no sequence. The
    # numbers are floats, as everything that Scan has.
    none = b.Expand(0.0, b.Concat([1], b.Shape(states, start=1), axis=0))
    numbers = [b.Cast(b.Add(r, b.const(1, "int64")), to="float32") for r in rows]
    given = [beta] if beta is not None else []

    def step(b, states, before, after, query, key, value, *rest):
        state = b.Gather(states, b.Cast(before, to="int64"), axis=0)
        for gate in rest[len(given) :]:
            state = b.Mul(state, b.Exp(b.Unsqueeze(gate, [1])))
        error = b.Sub(b.Unsqueeze(value, [2]), b.MatMul(state, b.Unsqueeze(key, [2])))
        for beta in rest[: len(given)]:
            error = b.Mul(error, b.Unsqueeze(beta, [1, 2]))
        state = b.Add(state, b.Mul(error, b.Unsqueeze(key, [1])))
        result = b.Squeeze(b.MatMul(state, b.Unsqueeze(query, [2])), [2])
        at = b.Reshape(b.Cast(after, to="int64"), [1, 1])
        return b.ScatterND(states, at, b.Unsqueeze(state, [0])), result

    sequences = [*numbers, of_heads(query), of_heads(key), value, *given, *gates]
    first = [b.Concat(none, states, axis=0)]
    states, out = b.scan(step, "float32", first, sequences, results=1, final=True)
    return b.Slice(states, [1], [2**31 - 1], [0]), b.Mul(out, scale)


def body_sequences(b, lengths, tokens):
    """Build the number of each token's sequence, int64 [T], and where each sequence begins, [B]."""
    zero, one = b.const(0, "int64"), b.const(1, "int64")
    places = b.Range(zero, tokens, one)
    if lengths is None:
        return b.Mul(places, zero), b.const([0], "int64")
    counts = b.Cast(lengths, to="int64")
    ends = b.CumSum(counts, zero)
    passed = b.GreaterOrEqual(b.Unsqueeze(places, [1]), b.Unsqueeze(ends, [0]))
    number = b.ReduceSum(b.Cast(passed, to="int64"), [1], keepdims=0)
    return number, b.Sub(ends, counts)

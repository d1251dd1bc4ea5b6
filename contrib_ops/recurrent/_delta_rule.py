"""The gated delta rule: linear attention whose state is corrected by each token."""

from onnxruntime_npu.opdef import check, is_traced, wide


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


class Tokens:
    """What the tokens have, in the dtype that is computed in, by value heads.

    query, key: [T, Nk, Dk]; value: [T, Nv, Dv]; beta, g: [T, Nv]; gk: [T, Nv, Dk]; beta is 1 where
    there is none, g and gk are 0.
    """

    def __init__(self, query, key, value, beta, g=None, gk=None):
        """Take the tensors of the call, whose last three may be None."""
        dtype, heads = wide(query).dtype, value.shape[1]
        self._query, self._key = (
            t.to(dtype).repeat_interleave(heads // t.shape[1], 1) for t in (query, key)
        )
        self._value = value.to(dtype)
        self._beta = (
            value.new_ones(value.shape[:2], dtype=dtype) if beta is None else beta.to(dtype)
        )
        gates = [t.to(dtype) for t in (None if g is None else g[:, :, None], gk) if t is not None]
        self._decay = sum(gates, self._value.new_zeros(*value.shape[:2], 1)).exp()

    def correct(self, state, t):
        """Return the state [Nv, Dv, Dk] after token t and the token's result [Nv, Dv]."""
        key = self._key[t]
        state = state * self._decay[t][:, None]
        error = self._value[t] - (state @ key[:, :, None])[:, :, 0]
        state = state + (self._beta[t][:, None] * error)[:, :, None] * key[:, None]
        return state, (state @ self._query[t][:, :, None])[:, :, 0]


def body_scan(b, query, key, value, beta, g, gk, states, rows, scale):
    """Build the recurrence in float32: the states and the results [T, Nv, Dv].

    query, key: [T, Nk, Dk]; value: [T, Nv, Dv]; beta, g: [T, Nv] or None; gk: [T, Nv, Dk] or None;
    states: float32 [N, Nv, Dv, Dk]; rows: int64 [T], the state before each token and that after it.
    """
    query, key, value = (b.Cast(t, to="float32") for t in (query, key, value))
    given = [] if beta is None else [b.Cast(beta, to="float32")]
    gates = [] if g is None else [b.Unsqueeze(g, [2])]
    gates += [] if gk is None else [gk]
    heads, width = b.Shape(value, start=1, end=2), b.Shape(key, start=2, end=3)
    tokens = b.Shape(key, start=0, end=1)
    shared = b.Div(heads, b.Shape(key, start=1, end=2))
    places = b.Concat(tokens, b.Shape(key, start=1, end=2), shared, width, axis=0)

    def of_heads(tensor):
        repeated = b.Expand(b.Unsqueeze(tensor, [2]), places)
        return b.Reshape(repeated, b.Concat(tokens, heads, width, axis=0), allowzero=1)

    # Scan has one more step, with zeros: its state is number 0, which belongs to no sequence. The
    # numbers are floats, as everything that Scan has.
    none = b.Expand(0.0, b.Concat([1], b.Shape(states, start=1), axis=0))
    numbers = [b.Cast(b.Add(r, b.const(1, "int64")), to="float32") for r in rows]

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

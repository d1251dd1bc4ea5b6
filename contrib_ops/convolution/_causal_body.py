"""npu_fused_causal_conv1d in standard operators: gathers of rows, without a loop over sequences."""

_END = 2**31 - 1
_DEFAULTS = {
    "activation": "None",
    "pad_slot_id": -1,
    "residual_connection": 0,
    "block_size": 128,
    "conv_mode": "default",
}


class _Sequences:
    """What each sequence has, int64 [B + 1]: the last is skipped, and has the tokens of none."""

    def __init__(self, b, begin, count):
        self._b = b
        self.begin, self.count = self.with_last(begin), self.with_last(count)
        self.skipped = b.Equal(self.count, 0)

    def with_last(self, numbers):
        return self._b.Concat(numbers, self._b.const([0], "int64"), axis=0)

    def numbers(self, tensor):
        """Return a number of each sequence, 0 where it has no tokens: it may be anything there."""
        b = self._b
        return b.Mul(self.with_last(b.Cast(tensor, to="int64")), b.Min(self.count, 1))


def build(
    b,
    call,
    x,
    weight,
    conv_states,
    query_start_loc,
    cache_indices,
    initial_state_mode,
    bias,
    num_accepted_tokens,
    num_computed_tokens,
    block_idx_first_scheduled_token,
    block_idx_last_scheduled_token,
    initial_state_idx,
):
    """Gather what each tap and each entry of a state is from zeros, the states and x in one table.

    States are scattered with one row more, which gets what is not to be stored.
    """
    zero, one = b.const(0, "int64"), b.const(1, "int64")
    attrs = _DEFAULTS | {name: v for name, v in call.attrs.items() if v is not None}
    size, channels = b.Shape(conv_states, start=1, end=2), b.Shape(x, start=-1)
    history = b.Sub(b.Shape(weight, start=0, end=1), one)
    entries = b.Mul(b.Shape(conv_states, start=0, end=1), size)
    if query_start_loc is None:
        tokens = b.Mul(b.Shape(x, start=0, end=1), b.Shape(x, start=1, end=2))
        sequences, length = b.Squeeze(b.Shape(x, start=0, end=1), [0]), b.Shape(x, start=1, end=2)
        begin = b.Mul(b.Range(zero, sequences, one), length)
        seqs = _Sequences(b, begin, b.Expand(length, b.Shape(begin)))
        bounds = b.Concat(begin, tokens, axis=0)
    else:
        bounds = b.Cast(query_start_loc, to="int64")
        begin, end = b.Slice(bounds, [0], [-1], [0]), b.Slice(bounds, [1], [_END], [0])
        seqs = _Sequences(b, begin, b.Sub(end, begin))
        tokens = b.Shape(x, start=0, end=1)
        if call.rank("x") == 3:
            tokens = b.Mul(tokens, b.Shape(x, start=1, end=2))

    flat = b.Reshape(b.Cast(x, to="float32"), b.Concat(tokens, channels, axis=0), allowzero=1)
    states = b.Reshape(
        b.Cast(conv_states, to="float32"), b.Concat(entries, channels, axis=0), allowzero=1
    )
    none = b.Expand(0.0, b.Concat(b.const([1], "int64"), channels, axis=0))
    table = b.Concat(none, states, flat, axis=0)

    if initial_state_idx is not None:
        rows = b.Cast(cache_indices, to="int64")
        last_rows = b.Expand(zero, b.Concat([1], b.Shape(rows, start=1, end=2), axis=0))
        rows = b.Concat(rows, last_rows, axis=0)
        first, last, initial = (
            seqs.numbers(t)
            for t in (
                block_idx_first_scheduled_token,
                block_idx_last_scheduled_token,
                initial_state_idx,
            )
        )
        read, write = (
            b.Squeeze(b.GatherElements(rows, b.Unsqueeze(t, [1]), axis=1), [1])
            for t in (initial, last)
        )
    elif cache_indices is not None:
        read = write = seqs.numbers(cache_indices)
    else:
        read = write = b.Range(zero, b.Squeeze(b.Shape(seqs.begin), [0]), one)
    pad = b.const(attrs["pad_slot_id"], "int64")
    skipped = b.Or(seqs.skipped, b.Equal(read, pad))

    fresh, computed = None, None
    if num_computed_tokens is not None:
        computed = seqs.numbers(num_computed_tokens)
        fresh = b.Equal(computed, zero)
    if initial_state_mode is not None:
        without = b.Equal(seqs.numbers(initial_state_mode), zero)
        fresh = without if fresh is None else b.Or(fresh, without)
    offset = b.Expand(b.Sub(size, history), b.Shape(seqs.begin))
    if num_accepted_tokens is not None:
        offset = b.Sub(seqs.numbers(num_accepted_tokens), one)
    if fresh is not None:
        offset = b.Where(fresh, zero, offset)

    def place(numbers, sequence, axes):
        """Return the rows of the table that entries ``numbers`` after offset 0 are."""

        def of(value):
            value = value if sequence is None else b.Gather(value, sequence, axis=0)
            return b.Unsqueeze(value, axes)

        held = of(b.Add(offset, history))
        of_state = b.Add(b.Add(of(b.Mul(read, size)), numbers), one)
        if fresh is not None:
            of_state = b.Where(of(fresh), zero, of_state)
        of_x = b.Add(b.Add(b.Sub(numbers, held), of(seqs.begin)), b.Add(entries, one))
        found = b.Where(b.Less(numbers, held), of_state, of_x)
        nowhere = b.Or(of(skipped), b.Less(numbers, zero))
        return b.Where(nowhere, zero, found)

    # The convolution: the sequence of each token, and its taps.
    places = b.Range(zero, b.Squeeze(tokens, [0]), one)
    ends = b.Slice(bounds, [1], [_END], [0])
    passed = b.GreaterOrEqual(b.Unsqueeze(places, [1]), b.Unsqueeze(ends, [0]))
    number = b.ReduceSum(b.Cast(passed, to="int64"), [1], keepdims=0)
    outside = b.Less(places, b.Slice(bounds, [0], [1], [0]))
    number = b.Where(outside, b.Shape(ends), number)
    of_begin = b.Sub(places, b.Gather(seqs.begin, number, axis=0))
    taps = b.Range(zero, b.Add(b.Squeeze(history, [0]), one), one)
    numbers = b.Add(b.Unsqueeze(b.Add(of_begin, b.Gather(offset, number, axis=0)), [1]), taps)
    windows = b.Gather(table, place(numbers, number, [1]), axis=0)
    y = b.ReduceSum(b.Mul(windows, b.Cast(weight, to="float32")), [1], keepdims=0)
    if bias is not None:
        y = b.Add(y, b.Cast(bias, to="float32"))
    if attrs["activation"] != "None":
        y = b.Mul(y, b.Sigmoid(y))
    if attrs["conv_mode"] == "pangu":
        reset = b.Sub(history, b.Gather(computed, number, axis=0))
        y = b.Where(b.Unsqueeze(b.Less(of_begin, reset), [1]), 0.0, y)
    if attrs["residual_connection"]:
        y = b.Add(y, flat)
    y = b.Where(b.Unsqueeze(b.Gather(skipped, number, axis=0), [1]), 0.0, y)

    # The states: what each entry of the row that a sequence writes becomes.
    spare = b.Concat(states, none, axis=0)

    def store(spare, row, keep, entry, numbers, axes):
        row = b.Add(b.Mul(row, size), entry)
        left = b.Or(b.Not(keep), b.Less(numbers, zero))
        target = b.Where(left, entries, row)
        values = b.Gather(table, place(numbers, None, axes), axis=0)
        return b.ScatterND(spare, b.Unsqueeze(target, [-1]), values)

    slots = b.Range(zero, b.Squeeze(size, [0]), one)
    tail = b.Sub(b.Add(b.Add(offset, history), seqs.count), size)
    keep = b.Not(b.Or(skipped, b.Equal(write, pad)))
    spare = store(
        spare,
        b.Unsqueeze(write, [1]),
        b.Unsqueeze(keep, [1]),
        slots,
        b.Add(b.Unsqueeze(tail, [1]), slots),
        [1],
    )
    if initial_state_idx is not None:
        block = b.const(attrs["block_size"], "int64")
        past = b.Sub(block, b.Mod(computed, block))
        after = b.Mod(b.Sub(seqs.count, past), block)
        whole = b.Sub(seqs.count, b.Where(b.Equal(after, zero), block, after))
        column = b.Range(zero, b.Squeeze(b.Shape(rows, start=1, end=2), [0]), one)
        first, last, whole, at, skips = (
            b.Unsqueeze(t, [1]) for t in (first, last, whole, offset, skipped)
        )
        ends_at = b.Sub(whole, b.Mul(b.Sub(b.Sub(last, column), one), block))
        ends_here = b.And(b.GreaterOrEqual(column, first), b.Less(column, last))
        keep = b.And(b.And(ends_here, b.Not(skips)), b.Not(b.Equal(rows, pad)))
        # Other blocks end anywhere: their numbers must be rows of the table, too.
        ends_at = b.Where(keep, ends_at, zero)
        state = b.Range(zero, b.Squeeze(history, [0]), one)
        spare = store(
            spare,
            b.Unsqueeze(rows, [2]),
            b.Unsqueeze(keep, [2]),
            b.Add(b.Sub(size, history), state),
            b.Add(b.Unsqueeze(b.Add(at, ends_at), [2]), state),
            [1, 2],
        )
    updated = b.Reshape(b.Slice(spare, [0], [-1], [0]), b.Shape(conv_states), allowzero=1)
    return (
        b.Cast(b.Reshape(y, b.Shape(x), allowzero=1), to=call.dtype("x")),
        b.Cast(updated, to=call.dtype("conv_states")),
    )

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


def build(b, call, given):
    """Gather what each tap and each entry of a state is from zeros, the states and x in one table.

    States are scattered with one row more, which gets what is not to be stored. ``given``: the
    operator's inputs by name, None where absent.
    """
    return _Body(b, call, given).results()


class _Body:
    """The nodes of one call."""

    def __init__(self, b, call, given):
        self.b, self.call, self.given = b, call, given
        self.zero, self.one = b.const(0, "int64"), b.const(1, "int64")
        self.attrs = _DEFAULTS | {name: v for name, v in call.attrs.items() if v is not None}
        x, weight, conv_states = given["x"], given["weight"], given["conv_states"]
        self.size, channels = b.Shape(conv_states, start=1, end=2), b.Shape(x, start=-1)
        self.history = b.Sub(b.Shape(weight, start=0, end=1), self.one)
        self.entries = b.Mul(b.Shape(conv_states, start=0, end=1), self.size)
        self.sequences, self.bounds, self.tokens = self._sequences()

        def as_rows(tensor, count):
            tensor = b.Cast(tensor, to="float32")
            return b.Reshape(tensor, b.Concat(count, channels, axis=0), allowzero=1)

        self.flat, self.states = as_rows(x, self.tokens), as_rows(conv_states, self.entries)
        self.none = b.Expand(0.0, b.Concat(b.const([1], "int64"), channels, axis=0))
        self.table = b.Concat(self.none, self.states, self.flat, axis=0)

        self._find_states()
        self.pad = b.const(self.attrs["pad_slot_id"], "int64")
        self.skipped = b.Or(self.sequences.skipped, b.Equal(self.read, self.pad))
        self.computed, self.fresh = self._computed()
        self.offset = self._offset()

    def results(self):
        """Return the result of the convolution, and the states."""
        b, x, conv_states = self.b, self.given["x"], self.given["conv_states"]
        y = self._convolution()
        spare = self._store_last(b.Concat(self.states, self.none, axis=0))
        if self.given["initial_state_idx"] is not None:
            spare = self._store_blocks(spare)
        updated = b.Reshape(b.Slice(spare, [0], [-1], [0]), b.Shape(conv_states), allowzero=1)
        return (
            b.Cast(b.Reshape(y, b.Shape(x), allowzero=1), to=self.call.dtype("x")),
            b.Cast(updated, to=self.call.dtype("conv_states")),
        )

    def _range(self, count):
        return self.b.Range(self.zero, self.b.Squeeze(count, [0]), self.one)

    def _sequences(self):
        """Return the sequences, the tokens where they begin and end, and the number of tokens."""
        b, x, bounds = self.b, self.given["x"], self.given["query_start_loc"]
        if bounds is None:
            tokens = b.Mul(b.Shape(x, start=0, end=1), b.Shape(x, start=1, end=2))
            count, length = b.Squeeze(b.Shape(x, start=0, end=1), [0]), b.Shape(x, start=1, end=2)
            begin = b.Mul(b.Range(self.zero, count, self.one), length)
            sequences = _Sequences(b, begin, b.Expand(length, b.Shape(begin)))
            return sequences, b.Concat(begin, tokens, axis=0), tokens
        bounds = b.Cast(bounds, to="int64")
        begin, end = b.Slice(bounds, [0], [-1], [0]), b.Slice(bounds, [1], [_END], [0])
        sequences = _Sequences(b, begin, b.Sub(end, begin))
        tokens = b.Shape(x, start=0, end=1)
        if self.call.rank("x") == 3:
            tokens = b.Mul(tokens, b.Shape(x, start=1, end=2))
        return sequences, bounds, tokens

    def _find_states(self):
        """Set the state that each sequence reads and the one that it writes at its end.

        With a table of states for blocks of tokens, also that table and the blocks that end.
        """
        b, given = self.b, self.given
        if given["initial_state_idx"] is not None:
            rows = b.Cast(given["cache_indices"], to="int64")
            of_last = b.Expand(self.zero, b.Concat([1], b.Shape(rows, start=1, end=2), axis=0))
            self.rows = b.Concat(rows, of_last, axis=0)
            self.first, self.last, initial = (
                self.sequences.numbers(given[name])
                for name in (
                    "block_idx_first_scheduled_token",
                    "block_idx_last_scheduled_token",
                    "initial_state_idx",
                )
            )
            self.read, self.write = (
                b.Squeeze(b.GatherElements(self.rows, b.Unsqueeze(t, [1]), axis=1), [1])
                for t in (initial, self.last)
            )
        elif given["cache_indices"] is not None:
            self.read = self.write = self.sequences.numbers(given["cache_indices"])
        else:
            self.read = self.write = self._range(b.Shape(self.sequences.begin))

    def _computed(self):
        """Return the tokens computed before, and whether a sequence begins without a state."""
        b, fresh, computed = self.b, None, None
        if self.given["num_computed_tokens"] is not None:
            computed = self.sequences.numbers(self.given["num_computed_tokens"])
            fresh = b.Equal(computed, self.zero)
        if self.given["initial_state_mode"] is not None:
            mode = self.sequences.numbers(self.given["initial_state_mode"])
            without = b.Equal(mode, self.zero)
            fresh = without if fresh is None else b.Or(fresh, without)
        return computed, fresh

    def _offset(self):
        """Return the entry of its state from which each sequence reads its history."""
        b = self.b
        offset = b.Expand(b.Sub(self.size, self.history), b.Shape(self.sequences.begin))
        if self.given["num_accepted_tokens"] is not None:
            offset = b.Sub(self.sequences.numbers(self.given["num_accepted_tokens"]), self.one)
        return offset if self.fresh is None else b.Where(self.fresh, self.zero, offset)

    def _place(self, numbers, sequence, axes):
        """Return the rows of the table that entries ``numbers`` after offset 0 are."""
        b, zero, one = self.b, self.zero, self.one

        def of(value):
            value = value if sequence is None else b.Gather(value, sequence, axis=0)
            return b.Unsqueeze(value, axes)

        held = of(b.Add(self.offset, self.history))
        of_state = b.Add(b.Add(of(b.Mul(self.read, self.size)), numbers), one)
        if self.fresh is not None:
            of_state = b.Where(of(self.fresh), zero, of_state)
        of_x = b.Add(
            b.Add(b.Sub(numbers, held), of(self.sequences.begin)), b.Add(self.entries, one)
        )
        found = b.Where(b.Less(numbers, held), of_state, of_x)
        nowhere = b.Or(of(self.skipped), b.Less(numbers, zero))
        return b.Where(nowhere, zero, found)

    def _convolution(self):
        """Find the sequence of each token, and gather its taps."""
        b, zero, attrs, bias = self.b, self.zero, self.attrs, self.given["bias"]
        places = self._range(self.tokens)
        ends = b.Slice(self.bounds, [1], [_END], [0])
        passed = b.GreaterOrEqual(b.Unsqueeze(places, [1]), b.Unsqueeze(ends, [0]))
        number = b.ReduceSum(b.Cast(passed, to="int64"), [1], keepdims=0)
        outside = b.Less(places, b.Slice(self.bounds, [0], [1], [0]))
        number = b.Where(outside, b.Shape(ends), number)
        of_begin = b.Sub(places, b.Gather(self.sequences.begin, number, axis=0))
        taps = b.Range(zero, b.Add(b.Squeeze(self.history, [0]), self.one), self.one)
        first = b.Add(of_begin, b.Gather(self.offset, number, axis=0))
        numbers = b.Add(b.Unsqueeze(first, [1]), taps)
        windows = b.Gather(self.table, self._place(numbers, number, [1]), axis=0)
        weight = b.Cast(self.given["weight"], to="float32")
        y = b.ReduceSum(b.Mul(windows, weight), [1], keepdims=0)
        if bias is not None:
            y = b.Add(y, b.Cast(bias, to="float32"))
        if attrs["activation"] != "None":
            y = b.Mul(y, b.Sigmoid(y))
        if attrs["conv_mode"] == "pangu":
            reset = b.Sub(self.history, b.Gather(self.computed, number, axis=0))
            y = b.Where(b.Unsqueeze(b.Less(of_begin, reset), [1]), 0.0, y)
        if attrs["residual_connection"]:
            y = b.Add(y, self.flat)
        return b.Where(b.Unsqueeze(b.Gather(self.skipped, number, axis=0), [1]), 0.0, y)

    def _store(self, spare, row, keep, entry, numbers, axes):
        """Write entries ``numbers`` after offset 0 to an entry of each row, where it is to keep."""
        b = self.b
        row = b.Add(b.Mul(row, self.size), entry)
        left = b.Or(b.Not(keep), b.Less(numbers, self.zero))
        target = b.Where(left, self.entries, row)
        values = b.Gather(self.table, self._place(numbers, None, axes), axis=0)
        return b.ScatterND(spare, b.Unsqueeze(target, [-1]), values)

    def _store_last(self, spare):
        """Write the state at the end of each sequence."""
        b = self.b
        slots = self._range(self.size)
        end = b.Add(b.Add(self.offset, self.history), self.sequences.count)
        tail = b.Sub(end, self.size)
        keep = b.Not(b.Or(self.skipped, b.Equal(self.write, self.pad)))
        row, keep = b.Unsqueeze(self.write, [1]), b.Unsqueeze(keep, [1])
        return self._store(spare, row, keep, slots, b.Add(b.Unsqueeze(tail, [1]), slots), [1])

    def _store_blocks(self, spare):
        """Write the states at the ends of blocks within each sequence."""
        b, zero = self.b, self.zero
        block = b.const(self.attrs["block_size"], "int64")
        past = b.Sub(block, b.Mod(self.computed, block))
        after = b.Mod(b.Sub(self.sequences.count, past), block)
        whole = b.Sub(self.sequences.count, b.Where(b.Equal(after, zero), block, after))
        column = self._range(b.Shape(self.rows, start=1, end=2))
        first, last, whole, at, skips = (
            b.Unsqueeze(t, [1]) for t in (self.first, self.last, whole, self.offset, self.skipped)
        )
        ends_at = b.Sub(whole, b.Mul(b.Sub(b.Sub(last, column), self.one), block))
        ends_here = b.And(b.GreaterOrEqual(column, first), b.Less(column, last))
        keep = b.And(b.And(ends_here, b.Not(skips)), b.Not(b.Equal(self.rows, self.pad)))
        # Other blocks end anywhere: their numbers must be rows of the table, too.
        ends_at = b.Where(keep, ends_at, zero)
        state = self._range(self.history)
        row, keep = b.Unsqueeze(self.rows, [2]), b.Unsqueeze(keep, [2])
        entry = b.Add(b.Sub(self.size, self.history), state)
        numbers = b.Add(b.Unsqueeze(b.Add(at, ends_at), [2]), state)
        return self._store(spare, row, keep, entry, numbers, [1, 2])

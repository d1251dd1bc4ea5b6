"""Which keys a query sees by the lengths of sequences, in a function body; as in the reference."""

from __future__ import annotations


class Positions:
    """Positions and lengths of each query and key, which broadcast to [B, N, Sq, Skv].

    i, j: the position of a query and of a key in its sequence, whose lengths are q_length and
    kv_length. masks: true where there is no such query or key. unused: true for the rows of keys
    and values that belong to no sequence, [B or 1, 1, Skv, 1].
    """

    def __init__(self, o):
        self.b, self.o = o.b, o
        self.masks, self.unused = [], []


class PackedPositions(Positions):
    """Those of sequences behind each other, whose ends are given."""

    def __init__(self, o, given, rows, keys):
        super().__init__(o)
        b = self.b
        q_length, self._sequence, i = self._rows(given("actual_seq_lengths"), rows)
        if o.table is None:
            kv_length, kv_sequence, j = self._rows(given("actual_seq_lengths_kv"), keys)
        else:
            kv_length, kv_sequence, j = self._pages(given("actual_seq_lengths_kv"), keys)
        beyond = b.GreaterOrEqual(j, b.Gather(kv_length, kv_sequence))
        self.unused.append(b.Unsqueeze(beyond, [0, 1, 3]))
        self.q_length = b.Unsqueeze(b.Gather(q_length, self._sequence), [1])
        self.kv_length = b.Unsqueeze(b.Gather(kv_length, self._sequence), [1])
        self.i, self.j = b.Unsqueeze(i, [1]), b.Unsqueeze(j, [0])
        same = b.Equal(b.Unsqueeze(self._sequence, [1]), b.Unsqueeze(kv_sequence, [0]))
        self.masks += [
            b.Not(same),
            b.GreaterOrEqual(self.i, self.q_length),
            b.GreaterOrEqual(self.j, self.kv_length),
        ]

    def _rows(self, ends, limit):
        """Return the length of each sequence, and 0; the sequence of each row; its position."""
        b = self.b
        borders = b.Concat(b.const([0], "int64"), ends, axis=0)
        row = self.o.count_to(limit)
        passed = b.GreaterOrEqual(b.Unsqueeze(row, [1]), b.Unsqueeze(ends, [0]))
        sequence = b.ReduceSum(b.Cast(passed, to="int64"), [1], keepdims=0)
        lengths = b.Concat(
            b.Sub(ends, b.Slice(borders, [0], [-1], [0])), b.const([0], "int64"), axis=0
        )
        return lengths, sequence, b.Sub(row, b.Gather(borders, sequence))

    def _pages(self, lengths, keys):
        """Return the same for keys in the pages of a table, with as many rows for each sequence."""
        b, o = self.b, self.o
        entries = o.of(o.table, 0, 1)
        capacity = b.Div(keys, b.Max(entries, b.const([1], "int64")))
        divisor = b.Max(capacity, b.const([1], "int64"))
        row = o.count_to(keys)
        sequence, position = b.Div(row, divisor), b.Mod(row, divisor)
        lengths = b.Expand(b.Slice(lengths, [0], entries, [0]), entries)
        return b.Concat(lengths, b.const([0], "int64"), axis=0), sequence, position

    def gather(self, planes):
        """Gather [N, B or 1, S, K] for each packed row and key: [N, Sq, Skv]."""
        b, o = self.b, self.o
        count, sides = o.of(planes, 1, 2), o.of(planes, 2, 4)
        width = o.of(planes, 3, 4)
        size = b.ReduceProd(sides, [0], keepdims=1)
        flat = o.reshape(planes, o.of(planes, 0, 1), b.Mul(count, size))
        spare = b.Expand(b.const(0.0, "float32"), o.join(o.of(planes, 0, 1), 1))
        flat = b.Concat(flat, spare, axis=1)
        plane = b.Unsqueeze(b.Min(self._sequence, b.Sub(count, 1)), [1])
        last = b.Max(b.Sub(o.of(planes, 2, 3), 1), b.const([0], "int64"))
        row = b.Min(self.i, last)  # of one row: the same for all
        place = b.Add(b.Mul(plane, size), b.Add(b.Mul(row, width), self.j))
        return b.Gather(flat, b.Min(place, b.Mul(count, size)), axis=1)


class PaddedPositions(Positions):
    """Those of a batch whose sequences begin or end with padding.

    own: the keys without those of a shared prefix, of length ``prefix``. many: whether there are
    several queries; with ``single_is_special`` one alone has neither a length nor padding.
    """

    def __init__(self, o, given, batch, rows, keys, own, prefix, many, single_is_special):
        super().__init__(o)
        b = self.b
        self.i = b.Unsqueeze(o.count_to(rows), [1])
        self.j = b.Unsqueeze(o.count_to(keys), [0])
        q_lengths, kv_lengths = given("actual_seq_lengths"), given("actual_seq_lengths_kv")
        self.q_length = self._per_sequence(q_lengths, batch, rows)
        self.kv_length = self._per_sequence(kv_lengths, batch, own)
        if single_is_special and q_lengths is not None:
            self.q_length = b.Where(many, self.q_length, 1)
        q_padding, kv_padding = given("query_padding_size"), given("kv_padding_size")
        if q_padding is not None:
            begin = self._begin(q_padding, self.q_length, rows)
            if single_is_special:
                begin = b.Where(many, begin, b.const([0], "int64"))
            self.i = b.Sub(self.i, begin)
            self.masks += [b.Less(begin, 0), b.Less(self.i, 0)]
        if kv_padding is not None:
            self._pad_keys(self._begin(kv_padding, self.kv_length, own), prefix)
        if prefix is not None:
            self.kv_length = b.Add(self.kv_length, prefix)
        if kv_lengths is not None:
            self._leave_out_keys(b.GreaterOrEqual(self.j, self.kv_length))
        if q_lengths is not None or q_padding is not None:
            self.masks.append(b.GreaterOrEqual(self.i, self.q_length))

    def _per_sequence(self, lengths, batch, limit):
        b = self.b
        given = limit if lengths is None else b.Slice(lengths, [0], batch, [0])
        return b.Unsqueeze(given, [1, 2, 3])

    def _begin(self, padding, length, limit):
        """Return the first row of each sequence, behind which are its others and the padding."""
        b = self.b
        begin = b.Sub(limit, b.Max(b.Reshape(padding, [1]), b.const([0], "int64")))
        return b.Sub(begin, length)

    def _pad_keys(self, begin, prefix):
        b = self.b
        if prefix is None:
            self.j = b.Sub(self.j, begin)
            outside = b.Less(self.j, 0)
        else:
            own_rows = b.GreaterOrEqual(self.j, prefix)
            self.j = b.Where(own_rows, b.Sub(self.j, begin), self.j)
            outside = b.And(own_rows, b.Less(self.j, prefix))
        self._leave_out_keys(b.Or(b.Less(begin, 0), outside))

    def _leave_out_keys(self, beyond):
        self.masks.append(beyond)
        self.unused.append(self.b.Transpose(beyond, perm=[0, 1, 3, 2]))

"""The ONNX form of the common first part of both passes of training attention."""

from onnxruntime_npu.opdef import NotPortable

from .._body_shapes import Shapes
from .._patterns import bounded

NOT_PORTABLE = (
    "calls with 0 < keep_prob < 1, for ONNX has no Philox, and those of TND with pse, a full mask "
    "or sparse_mode 5 to 8, which are another rule for each sequence"
)


class Body(Shapes):
    """Operands as [B, N, S, D] in float32, and the masked scores."""

    def __init__(
        self, b, call, query, key, value, pse, atten_mask, prefix, query_ends, key_ends
    ):  # fmt: skip
        super().__init__(b)
        self.call, self.pse, self.atten_mask, self.prefix = call, pse, atten_mask, prefix
        a = call.attrs
        self.heads, self.layout, self.mode = a["head_num"], a["input_layout"], a["sparse_mode"]
        self.packed = self.layout == "TND"
        full_mask = atten_mask is not None and self.mode < 2
        if 0 < a["keep_prob"] < 1 or (
            self.packed and (self.mode > 4 or pse is not None or full_mask)
        ):
            raise NotPortable(NOT_PORTABLE)
        self.infinity = b.const(float("-inf"), "float32")
        self.q = self.apart(query, self.heads)
        if self.layout in ("BSH", "SBH"):
            size, width = self.size_of(query, 2), self.size_of(key, 2)
            self.key_heads = b.Div(b.Mul(width, self.heads), size)
        else:
            self.key_heads = self.size_of(key, 1 if self.layout in ("BNSD", "TND") else 2)
        self.k, self.v = self.apart(key, self.key_heads), self.apart(value, self.key_heads)
        self.batch, self.rows = self.size_of(self.q, 0), self.size_of(self.q, 2)
        self.keys = self.size_of(self.k, 2)
        # The position of each query and key in its sequence, and the excess of keys over queries.
        self.i = b.Unsqueeze(self.count_to(self.rows), [1])
        self.j = b.Unsqueeze(self.count_to(self.keys), [0])
        self.delta = b.Sub(self.keys, self.rows)
        self.masks = []  # true where a pair is masked
        if self.packed:
            self.set_packed_places(query_ends, key_ends)
        if atten_mask is not None:
            self.set_masks()

    def size_of(self, x, axis):
        """Return the size of one axis as a list of one number."""
        return self.of(x, axis, axis + 1)

    def where_not(self, hidden, x):
        """Return x with 0 where masked."""
        return self.b.Where(hidden, 0.0, x)

    def empty(self, dtype):
        """Return a tensor without elements."""
        return self.b.Cast(self.b.const([], "float32"), to=dtype)

    def apart(self, x, count):
        """Return an operand of `count` heads as [B, N, S, D]."""
        b, layout = self.b, self.layout
        x = b.Cast(x, to="float32")
        if layout in ("BSH", "SBH"):
            parts = self.size_of(x, 0), self.size_of(x, 1), count
            x = self.reshape(x, *parts, b.Div(self.size_of(x, 2), count))
        perm = {"BSH": [0, 2, 1, 3], "BSND": [0, 2, 1, 3], "SBH": [1, 2, 0, 3]}.get(layout)
        if self.packed:
            return b.Unsqueeze(b.Transpose(x, perm=[1, 0, 2]), [0])
        return x if perm is None else b.Transpose(x, perm=perm)

    def together(self, x, count):
        """Return [B, N, S, D] with the axes of the layout, of query's dtype."""
        b, layout = self.b, self.layout
        x = b.Cast(x, to=self.call.dtype("query"))
        if self.packed:
            return b.Transpose(b.Squeeze(x, [0]), perm=[1, 0, 2])
        if layout != "BNSD":
            x = b.Transpose(x, perm=[2, 0, 1, 3] if layout == "SBH" else [0, 2, 1, 3])
        if layout in ("BSH", "SBH"):
            width = b.Mul(self.size_of(x, 3), count)
            x = self.reshape(x, self.size_of(x, 0), self.size_of(x, 1), width)
        return x

    def fold(self, x):
        """Return [B, N, Sq, ..] with the queries of the heads that share a key head in one axis."""
        group = self.b.Div(self.join(self.heads), self.key_heads)
        rows = self.b.Mul(self.rows, group)
        return self.reshape(x, self.batch, self.key_heads, rows, self.size_of(x, 3))

    def unfold(self, x):
        """Return the result of `fold` as [B, N, Sq, ..]."""
        return self.reshape(x, self.batch, self.heads, self.rows, self.size_of(x, 3))

    def product(self, left, right, terms):
        """Return left @ right; onnxruntime leaves it unwritten if it sums zero `terms`."""
        return self.where_not(self.b.Equal(terms, 0), self.b.MatMul(left, right))

    def set_packed_places(self, query_ends, key_ends):
        """Set the positions within packed sequences, and mask pairs of different sequences."""
        b = self.b
        zero = b.const([0], "int64")

        def places(ends, limit):
            # Unused entries at the end are zeros: the sequences there are empty.
            last = b.ReduceMax(b.Concat(ends, zero, axis=0), [0], keepdims=1)
            behind = b.CumSum(b.Cast(b.Greater(ends, 0), to="int64"), 0, reverse=1)
            ends = b.Where(b.And(b.Equal(ends, 0), b.Equal(behind, 0)), last, ends)
            borders = b.Concat(zero, ends, axis=0)
            row = self.count_to(limit)
            passed = b.GreaterOrEqual(b.Unsqueeze(row, [1]), b.Unsqueeze(ends, [0]))
            sequence = b.ReduceSum(b.Cast(passed, to="int64"), [1], keepdims=0)
            lengths = b.Sub(ends, b.Slice(borders, [0], [-1], [0]))
            lengths = b.Concat(lengths, zero, axis=0)
            return lengths, sequence, b.Sub(row, b.Gather(borders, sequence))

        q_length, q_sequence, i = places(query_ends, self.rows)
        k_length, k_sequence, j = places(key_ends, self.keys)
        owned = b.Less(q_sequence, b.Shape(query_ends))
        self.delta = b.Unsqueeze(b.Gather(b.Sub(k_length, q_length), q_sequence), [1])
        self.i, self.j = b.Unsqueeze(i, [1]), b.Unsqueeze(j, [0])
        same = b.Equal(b.Unsqueeze(q_sequence, [1]), b.Unsqueeze(k_sequence, [0]))
        self.masks.append(b.Not(b.And(same, b.Unsqueeze(owned, [1]))))

    def set_masks(self):
        """Set the masks of atten_mask and sparse_mode."""
        b, mode, i, j, a = self.b, self.mode, self.i, self.j, self.call.attrs
        corner = i if mode == 0 else b.Add(i, self.delta)
        if mode in (0, 4):
            self.masks.append(b.Less(j, b.Sub(corner, bounded(a["pre_tockens"]))))
            self.masks.append(b.Greater(j, b.Add(corner, bounded(a["next_tockens"]))))
        elif mode == 2:
            self.masks.append(b.Greater(j, i))
        elif mode == 3:
            self.masks.append(b.Greater(j, corner))
        elif mode in (5, 6):
            seen = b.Unsqueeze(b.Slice(self.prefix, [0], self.batch, [0]), [1, 2, 3])
            self.masks.append(b.And(b.Greater(j, corner), b.GreaterOrEqual(j, seen)))
        if mode in (0, 1, 5):
            self.masks.append(b.Cast(self.atten_mask, to="bool"))

    def bias_places(self):
        """Return each pair's index of its bias in [.., rows of pse * Skv], and whether it has one.

        Rows before those of pse use the last row's values at the same distance j - i.
        """
        b, held = self.b, self.size_of(self.pse, 2)
        first = b.Where(b.Equal(held, 1), self.rows, b.Sub(self.rows, held))
        early = b.Less(self.i, first)
        shift = b.Where(b.And(early, b.Greater(held, 1)), b.Sub(b.Sub(self.rows, 1), self.i), 0)
        row = b.Where(early, b.Sub(held, 1), b.Sub(self.i, first))
        column = b.Add(self.j, shift)
        place = b.Add(b.Mul(row, self.keys), b.Min(column, b.Sub(self.keys, 1)))
        return place, b.Less(column, self.keys)

    def scores(self, scale):
        """Return scale * (Q K^T + pse) as [B, N, Sq, Skv], -inf where masked."""
        b = self.b
        scores = b.MatMul(self.fold(self.q), b.Transpose(self.k, perm=[0, 1, 3, 2]))
        scores = self.unfold(scores)
        if self.pse is not None:
            place, held = self.bias_places()
            flat = self.reshape(
                b.Cast(self.pse, to="float32"), self.size_of(self.pse, 0), self.heads,
                b.Mul(self.size_of(self.pse, 2), self.keys),
            )  # fmt: skip
            scores = b.Add(scores, b.Where(held, b.Gather(flat, place, axis=2), 0.0))
        scores = b.Mul(scores, scale)
        for masked in self.masks:
            scores = b.Where(masked, self.infinity, scores)
        return scores

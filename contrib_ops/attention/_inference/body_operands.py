"""Operands of the inference attention operators in a function body."""

from __future__ import annotations

from .._body_shapes import Shapes
from .operands import LAYOUTS


class Operands(Shapes):
    """Operands as float32 [B, N, S, D]."""

    def __init__(self, b, call, op, layout, kv_heads, table):
        super().__init__(b)
        self.call, self.op = call, op
        self.axes, self.out_axes = LAYOUTS[layout]
        self.kv_heads, self.table = kv_heads, table

    def rows(self, name, x, n):
        """Return an operand stored as a tensor of rows."""
        b, axes = self.b, self.axes
        x = self.integers(name, x)
        if axes in ("SH", "NSD"):
            x = b.Unsqueeze(x, [0])
        if axes in ("BSH", "SH"):
            x = self.reshape(x, self.of(x, 0, 2), n, b.Div(self.of(x, 2, 3), n))
        if "T" in axes:
            return b.Unsqueeze(b.Transpose(x, perm=[1, 0, 2]) if axes == "TND" else x, [0])
        return x if axes in ("BNSD", "NSD") else b.Transpose(x, perm=[0, 2, 1, 3])

    def integers(self, name, x):
        """Return an operand as float32; int32 holds eight 4-bit integers."""
        b = self.b
        if self.call.dtype(name) != "int32":
            return b.Cast(x, to="float32")
        # Mod has the divisor's sign, so that dividing the remainder is exact.
        parts = []
        for _ in range(8):
            bits = b.Mod(x, 16)
            x = b.Div(b.Sub(x, bits), 16)
            signed = b.Sub(bits, b.Mul(b.Cast(b.Greater(bits, 7), to="int32"), 16))
            parts.append(b.Unsqueeze(signed, [-1]))
        x = b.Concat(*parts, axis=-1)
        rank = self.call.rank(name)
        if rank is None:
            raise ValueError(f"[{self.op}] expected {name} of known rank")
        x = self.reshape(x, self.of(x, 0, rank - 1), b.Mul(self.of(x, rank - 1, rank), 8))
        return b.Cast(x, to="float32")

    def cache(self, name, x):
        """Return keys or values, stored as a tensor of rows or in pages."""
        if self.table is None:
            return self.rows(name, x, self.kv_heads)
        b = self.b
        rank = self.call.rank(name)
        if rank not in (3, 4, 5):
            raise ValueError(f"[{self.op}] expected {name} of known rank 3, 4 or 5, got {rank}")
        x = self.integers(name, x)
        if rank == 3:
            size = b.Div(self.of(x, 2, 3), self.kv_heads)
            x = self.reshape(x, self.of(x, 0, 2), self.kv_heads, size)
            x = b.Transpose(x, perm=[0, 2, 1, 3])
        elif rank == 5:
            x = b.Transpose(x, perm=[0, 1, 3, 2, 4])
            x = self.reshape(x, self.of(x, 0, 3), b.Mul(self.of(x, 3, 4), self.of(x, 4, 5)))
        return self.from_pages(x)

    def from_pages(self, pages):
        """Return [blocks, N, block_size, ..] of rank 4 as [B, N, S, ..]."""
        b = self.b
        last = b.Cast(b.Sub(self.of(pages, 0, 1), 1), to="int32")
        table = b.Max(b.Min(self.table, last), 0)
        capacity = b.Mul(self.of(table, 1, 2), self.of(pages, 2, 3))
        rows = b.Transpose(b.Gather(pages, table, axis=0), perm=[0, 2, 1, 3, 4])
        return self.reshape(
            rows, self.of(table, 0, 1), self.of(pages, 1, 2), capacity, self.of(pages, 3, 4)
        )

    def together(self, x):
        """Return paged sequences as one, [1, N, B * S, D]."""
        x = self.b.Transpose(x, perm=[1, 0, 2, 3])
        return self.reshape(
            x, 1, self.kv_heads, self.b.Mul(self.of(x, 1, 2), self.of(x, 2, 3)), self.of(x, 3, 4)
        )

    def result(self, x):
        """Return [B, N, S, D] with the axes of the output layout."""
        b, axes = self.b, self.out_axes
        if axes in ("BSH", "SH"):
            x = b.Transpose(x, perm=[0, 2, 1, 3])
            x = self.reshape(x, self.of(x, 0, 2), b.Mul(self.of(x, 2, 3), self.of(x, 3, 4)))
            return x if axes == "BSH" else b.Squeeze(x, [0])
        if axes == "NBSD":
            return b.Transpose(x, perm=[1, 0, 2, 3])
        if axes in ("NTD", "NSD"):
            return b.Squeeze(x, [0])
        if axes == "TND":
            return b.Transpose(b.Squeeze(x, [0]), perm=[1, 0, 2])
        return x if axes == "BNSD" else b.Transpose(x, perm=[0, 2, 1, 3])

    def dequantise(self, x, scale, offset, mode, half, dtype):
        """Return (x + offset) * scale, rounded to dtype; half: index in a joint pair."""
        b = self.b
        heads = self.kv_heads

        def spread(t):
            if half is not None:
                t = b.Slice(t, [half], [half + 1], [0])
            t = b.Cast(t, to="float32")
            last = b.Shape(t, start=-1)
            if mode == 0:
                size = self.of(x, 3, 4)
                t = b.Expand(b.Reshape(t, [-1]), b.Mul(size, heads))
                return self.reshape(t, 1, heads, 1, size)
            if mode == 2:
                return self.reshape(t, 1, heads, 1, 1)
            if mode in (1, 3):
                t = self.reshape(t, self.of(x, 0, 1), heads if mode == 3 else 1, last, 1)
                return b.Slice(t, [0], self.of(x, 2, 3), [2])
            rows = b.Div(self.of(x, 2, 3), self.of(self.table, 1, 2))  # of a block
            return self.from_pages(self.reshape(t, -1, heads if mode == 5 else 1, rows, 1))

        def rounded(t):
            return t if dtype == "float32" else b.Cast(b.Cast(t, to=dtype), to="float32")

        if offset is not None:
            # Only as many elements as the scale has are used.
            alike = b.Reshape(offset, b.Shape(scale), allowzero=1)
            x = rounded(b.Add(x, spread(alike)))
        return rounded(b.Mul(x, spread(scale)))


def number(b, x, dtype):
    """Return the one element of a scale as float32 [1]; 64-bit integers hold a float32's bits."""
    x = b.Reshape(x, [1])
    if dtype not in ("int64", "uint64"):
        return b.Cast(x, to="float32")
    x = b.Cast(x, to="int64")
    bits = b.Mod(x, 2**32)
    exponent = b.Cast(b.Sub(b.Mod(b.Div(bits, 2**23), 256), 127), to="float32")
    fraction = b.Div(b.Cast(b.Mod(bits, 2**23), to="float32"), float(2**23))
    size = b.Mul(b.Add(fraction, 1.0), b.Pow(2.0, exponent))
    return b.Where(b.Less(bits, 2**31), size, b.Neg(size))

"""The ONNX function body that the inference attention operators share."""

from __future__ import annotations

from .._body_shapes import Shapes
from .._patterns import COMPRESSED, bounded
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


def attend_body(b, call, op, inputs, attributes, *, decode="single row", names=None):
    """Return attention and log-sum-exp, as attend does.

    inputs: values by their names in npu_fused_infer_attention_score, None where absent; attributes:
    likewise; names: the operator's own names of them.
    """
    a, names = attributes, names or {}
    given = inputs.get
    heads = a["num_heads"]
    kv_heads = a["num_key_value_heads"] or heads
    mode = a["sparse_mode"]
    block_table = given("block_table")
    o = Operands(b, call, op, a["input_layout"], kv_heads, block_table)
    packed = "T" in o.axes
    infinity = b.const(float("-inf"), "float32")
    integers = call.dtype("query") == "int8"

    def scalar(name):
        return number(b, given(name), call.dtype(names.get(name, name)))

    q = o.rows("query", given("query"), heads)
    joint = given("antiquant_scale") is not None

    def numbers(kind, x):
        """Apply the scales of key or value, if any."""
        name = "antiquant" if joint else f"{kind}_antiquant"
        scale = given(f"{name}_scale")
        if scale is None:
            return x
        half = int(kind == "value") if joint else None
        mode = a.get(f"{name}_mode", 0)
        dtype = call.dtype(f"{name}_scale")
        return o.dequantise(x, scale, given(f"{name}_offset"), mode, half, dtype)

    k, v = (numbers(kind, o.cache(kind, given(kind))) for kind in ("key", "value"))
    own = o.of(k, 2, 3)
    prefix = None
    if given("key_shared_prefix") is not None:

        def with_prefix(kind, x):
            front = o.rows(f"{kind}_shared_prefix", given(f"{kind}_shared_prefix"), kv_heads)
            if given("actual_shared_prefix_len") is not None:
                front = b.Slice(front, [0], given("actual_shared_prefix_len"), [2])
            front = numbers(kind, front)
            axes = o.join(o.of(x, 0, 2), o.of(front, 2, 4))
            return b.Concat(b.Expand(front, axes), x, axis=2), o.of(front, 2, 3)

        (k, prefix), (v, _) = with_prefix("key", k), with_prefix("value", v)
    if given("query_rope") is not None:
        if integers:
            q = b.Mul(q, scalar("dequant_scale1"))
        q = b.Concat(q, o.rows("query_rope", given("query_rope"), heads), axis=3)
        k = b.Concat(k, o.cache("key_rope", given("key_rope")), axis=3)
    if packed and block_table is not None:
        k, v = o.together(k), o.together(v)
    batch, rows, keys = o.of(q, 0, 1), o.of(q, 2, 3), o.of(k, 2, 3)
    q_lengths, kv_lengths = given("actual_seq_lengths"), given("actual_seq_lengths_kv")

    def packed_rows(ends, limit):
        borders = b.Concat(b.const([0], "int64"), ends, axis=0)
        row = o.count_to(limit)
        passed = b.GreaterOrEqual(b.Unsqueeze(row, [1]), b.Unsqueeze(ends, [0]))
        sequence = b.ReduceSum(b.Cast(passed, to="int64"), [1], keepdims=0)
        lengths = b.Concat(
            b.Sub(ends, b.Slice(borders, [0], [-1], [0])), b.const([0], "int64"), axis=0
        )
        return lengths, sequence, b.Sub(row, b.Gather(borders, sequence))

    def of_sequences(planes):
        """Gather [N, B or 1, S, K] for each packed row and key: [N, Sq, Skv]."""
        count, sides = o.of(planes, 1, 2), o.of(planes, 2, 4)
        width = o.of(planes, 3, 4)
        size = b.ReduceProd(sides, [0], keepdims=1)
        flat = o.reshape(planes, o.of(planes, 0, 1), b.Mul(count, size))
        spare = b.Expand(b.const(0.0, "float32"), o.join(o.of(planes, 0, 1), 1))
        flat = b.Concat(flat, spare, axis=1)
        plane = b.Unsqueeze(b.Min(q_sequence, b.Sub(count, 1)), [1])
        place = b.Add(b.Mul(plane, size), b.Add(b.Mul(i, width), j))
        return b.Gather(flat, b.Min(place, b.Mul(count, size)), axis=1)

    # As in the reference: lengths and positions that broadcast to [B, N, Sq, Skv].
    masks = []
    unused = []  # [B or 1, 1, Skv, 1]
    many = b.Greater(rows, 1)
    # A single query ignores patterns and its own length, unless rope is separate.
    single_is_special = decode != "never" and not packed and given("query_rope") is None
    if packed:
        q_length, q_sequence, i = packed_rows(q_lengths, rows)
        if block_table is None:
            kv_length, kv_sequence, j = packed_rows(kv_lengths, keys)
        else:
            entries = o.of(block_table, 0, 1)
            capacity = b.Div(keys, b.Max(entries, b.const([1], "int64")))
            divisor = b.Max(capacity, b.const([1], "int64"))
            row = o.count_to(keys)
            kv_sequence, j = b.Div(row, divisor), b.Mod(row, divisor)
            kv_length = b.Expand(b.Slice(kv_lengths, [0], entries, [0]), entries)
            kv_length = b.Concat(kv_length, b.const([0], "int64"), axis=0)
        beyond = b.GreaterOrEqual(j, b.Gather(kv_length, kv_sequence))
        unused.append(b.Unsqueeze(beyond, [0, 1, 3]))
        q_length = b.Unsqueeze(b.Gather(q_length, q_sequence), [1])
        kv_length = b.Unsqueeze(b.Gather(kv_length, q_sequence), [1])
        i, j = b.Unsqueeze(i, [1]), b.Unsqueeze(j, [0])
        same = b.Equal(b.Unsqueeze(q_sequence, [1]), b.Unsqueeze(kv_sequence, [0]))
        masks += [b.Not(same), b.GreaterOrEqual(i, q_length), b.GreaterOrEqual(j, kv_length)]
    else:
        i, j = b.Unsqueeze(o.count_to(rows), [1]), b.Unsqueeze(o.count_to(keys), [0])

        def per_batch(lengths, limit):
            given = limit if lengths is None else b.Slice(lengths, [0], batch, [0])
            return b.Unsqueeze(given, [1, 2, 3])

        def begin_of(padding, length, limit):
            begin = b.Sub(limit, b.Max(b.Reshape(padding, [1]), b.const([0], "int64")))
            return b.Sub(begin, length)

        q_length, kv_length = per_batch(q_lengths, rows), per_batch(kv_lengths, own)
        if single_is_special and q_lengths is not None:
            q_length = b.Where(many, q_length, 1)
        if given("query_padding_size") is not None:
            begin = begin_of(given("query_padding_size"), q_length, rows)
            if single_is_special:
                begin = b.Where(many, begin, b.const([0], "int64"))
            i = b.Sub(i, begin)
            masks += [b.Less(begin, 0), b.Less(i, 0)]
        if given("kv_padding_size") is not None:
            begin = begin_of(given("kv_padding_size"), kv_length, own)
            if prefix is None:
                j = b.Sub(j, begin)
                outside = b.Less(j, 0)
            else:
                own_rows = b.GreaterOrEqual(j, prefix)
                j = b.Where(own_rows, b.Sub(j, begin), j)
                outside = b.And(own_rows, b.Less(j, prefix))
            beyond = b.Or(b.Less(begin, 0), outside)
            masks.append(beyond)
            unused.append(b.Transpose(beyond, perm=[0, 1, 3, 2]))
        if prefix is not None:
            kv_length = b.Add(kv_length, prefix)
        if kv_lengths is not None:
            beyond = b.GreaterOrEqual(j, kv_length)
            masks.append(beyond)
            unused.append(b.Transpose(beyond, perm=[0, 1, 3, 2]))
        if q_lengths is not None or given("query_padding_size") is not None:
            masks.append(b.GreaterOrEqual(i, q_length))
    offset = b.Sub(kv_length, q_length)
    pattern = []
    atten_mask = given("atten_mask")
    if mode == 0 and atten_mask is not None:
        pattern.append(b.Less(j, b.Sub(i, bounded(a["pre_tokens"]))))
        pattern.append(b.Greater(j, b.Add(i, bounded(a["next_tokens"]))))
    elif mode == 2:
        pattern.append(b.Greater(j, i))
    elif mode == 3:
        pattern.append(b.Greater(j, b.Add(i, offset)))
    elif mode == 4:
        pattern.append(b.Less(j, b.Add(i, b.Sub(offset, bounded(a["pre_tokens"])))))
        pattern.append(b.Greater(j, b.Add(i, b.Add(offset, bounded(a["next_tokens"])))))
    masks += [b.And(many, p) for p in pattern] if single_is_special else pattern
    if atten_mask is not None and packed and mode < 2:
        sides = b.Shape(atten_mask, start=-2)
        size = b.ReduceProd(sides, [0], keepdims=1)
        count = b.Div(b.Reshape(b.Size(atten_mask), [1]), b.Max(size, b.const([1], "int64")))
        count = b.Where(b.Equal(size, 0), 1, count)
        planes = o.reshape(b.Cast(atten_mask, to="float32"), 1, count, sides)
        masks.append(b.Greater(of_sequences(planes), 0.0))
    elif atten_mask is not None and (mode < 2 or single_is_special):
        flat = b.Reshape(b.Cast(atten_mask, to="bool"), [-1])
        size = b.Shape(flat)
        width = b.Shape(atten_mask, start=-1)  # may exceed the keys of pages
        # The number of empty planes is unknown; any number works.
        plane = b.Max(b.Mul(rows, width), b.const([1], "int64"))
        planes = b.Where(b.Equal(size, 0), 1, b.Div(size, plane))
        if mode < 2:
            mask = o.reshape(flat, planes, 1, rows, width)
            masks.append(b.Slice(mask, [0], keys, [3]))
        else:
            # A compressed mask has no further effect: one unused element replaces it.
            sides = b.ReduceMax(b.Abs(b.Sub(b.Shape(atten_mask, start=-2), COMPRESSED)), [0])
            compressed = b.And(b.Equal(size, COMPRESSED**2), b.Equal(sides, 0))
            full = b.Not(b.Or(many, compressed))
            flat = b.Slice(flat, [0], b.Where(full, size, 1), [0])
            mask = o.reshape(flat, b.Where(full, planes, 1), 1, 1, b.Where(full, width, 1))
            masks.append(b.And(full, b.Slice(mask, [0], b.Max(keys, b.const([1], "int64")), [3])))

    folded = o.join(batch, kv_heads, b.Mul(rows, heads // kv_heads))
    scores = b.MatMul(o.reshape(q, folded, o.of(q, 3, 4)), b.Transpose(k, perm=[0, 1, 3, 2]))
    scores = b.Mul(o.reshape(scores, batch, heads, rows, keys), a["scale"])
    if integers and given("query_rope") is None:
        scores = b.Mul(scores, scalar("dequant_scale1"))
    if given("pse_shift") is not None and packed:
        shift = b.Cast(given("pse_shift"), to="float32")
        scores = b.Add(
            scores, b.Unsqueeze(of_sequences(b.Transpose(shift, perm=[1, 0, 2, 3])), [0])
        )
    elif given("pse_shift") is not None:
        ends = o.join(rows, keys)
        shift = b.Slice(b.Cast(given("pse_shift"), to="float32"), [0, 0], ends, [2, 3])
        scores = b.Add(scores, shift)
    for masked in masks:
        scores = b.Where(masked, infinity, scores)
    maximum = b.ReduceMax(scores, [3], keepdims=1)
    maximum = b.Where(b.Equal(maximum, infinity), 0.0, maximum)
    weights = b.Exp(b.Sub(scores, maximum))
    total = b.ReduceSum(weights, [3], keepdims=1)
    for beyond in unused:
        v = b.Where(beyond, 0.0, v)
    if integers:
        weights = b.Clip(b.Round(b.Mul(weights, scalar("quant_scale1"))), -128.0, 127.0)
    out = b.MatMul(o.reshape(weights, folded, keys), v)
    out = o.reshape(out, batch, heads, rows, o.of(v, 3, 4))
    # Without keys, onnxruntime leaves the MatMul result unwritten.
    out = b.Where(b.Equal(total, 0.0), 0.0, b.Div(out, total))
    if integers:
        out = b.Mul(out, scalar("dequant_scale2"))
    if given("quant_scale2") is None:
        floats = "float16" if given("query_rope") is None else call.dtype("query_rope")
        out = b.Cast(out, to=floats if integers else call.dtype("query"))
    else:
        size = o.of(v, 3, 4)

        def spread(x):
            x = b.Expand(b.Reshape(b.Cast(x, to="float32"), [-1]), b.Mul(size, heads))
            return o.reshape(x, 1, heads, 1, size)

        out = b.Mul(out, spread(given("quant_scale2")))
        if given("quant_offset2") is not None:
            out = b.Add(out, spread(given("quant_offset2")))
        out = b.Cast(b.Clip(b.Round(out), -128.0, 127.0), to="int8")
    lse = b.Add(maximum, b.Log(total))
    if packed:
        lse = b.Transpose(b.Squeeze(lse, [0]), perm=[1, 0, 2])
    return o.result(out), lse

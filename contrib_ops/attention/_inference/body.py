"""The ONNX function body that the inference attention operators share."""

from __future__ import annotations

from .._patterns import COMPRESSED, bounded
from .body_operands import Operands, number
from .body_positions import PackedPositions, PaddedPositions


def attend_body(b, call, op, inputs, attributes, *, decode="single row", names=None):
    """Return attention and log-sum-exp, as attend does.

    inputs: values by their names in npu_fused_infer_attention_score, None where absent; attributes:
    likewise; names: the operator's own names of them.
    """
    return _Body(b, call, op, inputs, attributes, decode, names or {}).results()


class _Body:
    """The nodes of one call."""

    def __init__(self, b, call, op, inputs, attributes, decode, names):
        self.b, self.call, self.a, self.names = b, call, attributes, names
        self.given = inputs.get
        self.heads = attributes["num_heads"]
        self.kv_heads = attributes["num_key_value_heads"] or self.heads
        layout, table = attributes["input_layout"], self.given("block_table")
        self.o = Operands(b, call, op, layout, self.kv_heads, table)
        self.packed = "T" in self.o.axes
        self.has_rope = self.given("query_rope") is not None
        self.integers = call.dtype("query") == "int8"
        # A single query ignores patterns and its own length, unless rope is separate.
        self.single_is_special = decode != "never" and not self.packed and not self.has_rope

    def results(self):
        """Return attention in the output layout, and log-sum-exp."""
        b, o = self.b, self.o
        infinity = b.const(float("-inf"), "float32")
        q, k, v, own, prefix = self._operands()
        batch, rows, keys = o.of(q, 0, 1), o.of(q, 2, 3), o.of(k, 2, 3)
        many = b.Greater(rows, 1)
        if self.packed:
            at = PackedPositions(o, self.given, rows, keys)
        else:
            special = self.single_is_special
            at = PaddedPositions(o, self.given, batch, rows, keys, own, prefix, many, special)
        masks = at.masks + self._pattern(at, many) + self._mask(at, rows, keys, many)

        folded = o.join(batch, self.kv_heads, b.Mul(rows, self.heads // self.kv_heads))
        scores = b.MatMul(o.reshape(q, folded, o.of(q, 3, 4)), b.Transpose(k, perm=[0, 1, 3, 2]))
        scores = b.Mul(o.reshape(scores, batch, self.heads, rows, keys), self.a["scale"])
        if self.integers and not self.has_rope:
            scores = b.Mul(scores, self._number("dequant_scale1"))
        if self.given("pse_shift") is not None:
            scores = b.Add(scores, self._shift(at, rows, keys))
        for masked in masks:
            scores = b.Where(masked, infinity, scores)
        maximum = b.ReduceMax(scores, [3], keepdims=1)
        maximum = b.Where(b.Equal(maximum, infinity), 0.0, maximum)
        weights = b.Exp(b.Sub(scores, maximum))
        total = b.ReduceSum(weights, [3], keepdims=1)
        for beyond in at.unused:
            v = b.Where(beyond, 0.0, v)
        if self.integers:
            weights = b.Clip(b.Round(b.Mul(weights, self._number("quant_scale1"))), -128.0, 127.0)
        out = b.MatMul(o.reshape(weights, folded, keys), v)
        out = o.reshape(out, batch, self.heads, rows, o.of(v, 3, 4))
        # Without keys, onnxruntime leaves the MatMul result unwritten.
        out = b.Where(b.Equal(total, 0.0), 0.0, b.Div(out, total))
        out = self._as_given(out, v)
        lse = b.Add(maximum, b.Log(total))
        if self.packed:
            lse = b.Transpose(b.Squeeze(lse, [0]), perm=[1, 0, 2])
        return o.result(out), lse

    def _number(self, name):
        return number(self.b, self.given(name), self.call.dtype(self.names.get(name, name)))

    def _operands(self):
        """Return queries, keys and values; the number of keys without a prefix; its length."""
        b, o, given = self.b, self.o, self.given
        q = o.rows("query", given("query"), self.heads)
        k, v = (self._dequantised(kind, o.cache(kind, given(kind))) for kind in ("key", "value"))
        own = o.of(k, 2, 3)
        prefix = None
        if given("key_shared_prefix") is not None:
            (k, prefix), (v, _) = self._with_prefix("key", k), self._with_prefix("value", v)
        if self.has_rope:
            if self.integers:
                q = b.Mul(q, self._number("dequant_scale1"))
            q = b.Concat(q, o.rows("query_rope", given("query_rope"), self.heads), axis=3)
            k = b.Concat(k, o.cache("key_rope", given("key_rope")), axis=3)
        if self.packed and o.table is not None:
            k, v = o.together(k), o.together(v)
        return q, k, v, own, prefix

    def _dequantised(self, kind, x):
        """Apply the scales of key or value, if any."""
        joint = self.given("antiquant_scale") is not None
        name = "antiquant" if joint else f"{kind}_antiquant"
        scale = self.given(f"{name}_scale")
        if scale is None:
            return x
        half = int(kind == "value") if joint else None
        mode = self.a.get(f"{name}_mode", 0)
        dtype = self.call.dtype(f"{name}_scale")
        return self.o.dequantise(x, scale, self.given(f"{name}_offset"), mode, half, dtype)

    def _with_prefix(self, kind, x):
        """Return keys or values behind those that all sequences share, and how many these are."""
        b, o, given = self.b, self.o, self.given
        front = o.rows(f"{kind}_shared_prefix", given(f"{kind}_shared_prefix"), self.kv_heads)
        if given("actual_shared_prefix_len") is not None:
            front = b.Slice(front, [0], given("actual_shared_prefix_len"), [2])
        front = self._dequantised(kind, front)
        axes = o.join(o.of(x, 0, 2), o.of(front, 2, 4))
        return b.Concat(b.Expand(front, axes), x, axis=2), o.of(front, 2, 3)

    def _pattern(self, at, many):
        """Return the masks of the sparse mode."""
        b, a, i, j = self.b, self.a, at.i, at.j
        mode = a["sparse_mode"]
        offset = b.Sub(at.kv_length, at.q_length)
        pattern = []
        if mode == 0 and self.given("atten_mask") is not None:
            pattern.append(b.Less(j, b.Sub(i, bounded(a["pre_tokens"]))))
            pattern.append(b.Greater(j, b.Add(i, bounded(a["next_tokens"]))))
        elif mode == 2:
            pattern.append(b.Greater(j, i))
        elif mode == 3:
            pattern.append(b.Greater(j, b.Add(i, offset)))
        elif mode == 4:
            pattern.append(b.Less(j, b.Add(i, b.Sub(offset, bounded(a["pre_tokens"])))))
            pattern.append(b.Greater(j, b.Add(i, b.Add(offset, bounded(a["next_tokens"])))))
        return [b.And(many, p) for p in pattern] if self.single_is_special else pattern

    def _mask(self, at, rows, keys, many):
        """Return the mask that is given, if it has an effect, in a list."""
        b, o = self.b, self.o
        mask, mode = self.given("atten_mask"), self.a["sparse_mode"]
        if mask is None:
            return []
        if self.packed and mode < 2:
            sides = b.Shape(mask, start=-2)
            size = b.ReduceProd(sides, [0], keepdims=1)
            count = b.Div(b.Reshape(b.Size(mask), [1]), b.Max(size, b.const([1], "int64")))
            count = b.Where(b.Equal(size, 0), 1, count)
            planes = o.reshape(b.Cast(mask, to="float32"), 1, count, sides)
            return [b.Greater(at.gather(planes), 0.0)]
        if mode >= 2 and not self.single_is_special:
            return []
        flat = b.Reshape(b.Cast(mask, to="bool"), [-1])
        size = b.Shape(flat)
        width = b.Shape(mask, start=-1)  # may exceed the keys of pages
        # The number of empty planes is unknown; any number works.
        plane = b.Max(b.Mul(rows, width), b.const([1], "int64"))
        planes = b.Where(b.Equal(size, 0), 1, b.Div(size, plane))
        if mode < 2:
            return [b.Slice(o.reshape(flat, planes, 1, rows, width), [0], keys, [3])]
        # A compressed mask has no further effect: one unused element replaces it.
        sides = b.ReduceMax(b.Abs(b.Sub(b.Shape(mask, start=-2), COMPRESSED)), [0])
        compressed = b.And(b.Equal(size, COMPRESSED**2), b.Equal(sides, 0))
        full = b.Not(b.Or(many, compressed))
        flat = b.Slice(flat, [0], b.Where(full, size, 1), [0])
        mask = o.reshape(flat, b.Where(full, planes, 1), 1, 1, b.Where(full, width, 1))
        return [b.And(full, b.Slice(mask, [0], b.Max(keys, b.const([1], "int64")), [3]))]

    def _shift(self, at, rows, keys):
        """Return what is added to the scores."""
        b = self.b
        if self.packed:
            shift = b.Cast(self.given("pse_shift"), to="float32")
            return b.Unsqueeze(at.gather(b.Transpose(shift, perm=[1, 0, 2, 3])), [0])
        ends = self.o.join(rows, keys)
        return b.Slice(b.Cast(self.given("pse_shift"), to="float32"), [0, 0], ends, [2, 3])

    def _as_given(self, out, v):
        """Return the result with the scales and in the dtype of the output."""
        b, o = self.b, self.o
        if self.integers:
            out = b.Mul(out, self._number("dequant_scale2"))
        if self.given("quant_scale2") is None:
            floats = self.call.dtype("query_rope") if self.has_rope else "float16"
            return b.Cast(out, to=floats if self.integers else self.call.dtype("query"))
        size = o.of(v, 3, 4)

        def spread(x):
            x = b.Expand(b.Reshape(b.Cast(x, to="float32"), [-1]), b.Mul(size, self.heads))
            return o.reshape(x, 1, self.heads, 1, size)

        out = b.Mul(out, spread(self.given("quant_scale2")))
        if self.given("quant_offset2") is not None:
            out = b.Add(out, spread(self.given("quant_offset2")))
        return b.Cast(b.Clip(b.Round(out), -128.0, 127.0), to="int8")

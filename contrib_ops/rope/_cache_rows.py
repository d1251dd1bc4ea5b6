"""Stores new rows in a key or value cache, in torch and as ONNX nodes.

A cache [.., width] has one row per token. In the NZ order a block of ``page`` rows is stored as
[width / d0, page, d0] with d0 = 16, or 32 in int8.
"""

from onnxruntime_npu.opdef import torch


def store(cache, values, slots, page, fractal, scale):
    """Return the cache with values [tokens, width] in rows slots [tokens]; negative: not stored.

    With a scale [width] rows are round(values * scale), clamped to int8.
    """
    if scale is None:
        values = values.to(cache.dtype)
    else:
        values = (values * scale.to(values.dtype)).round().clamp(-128, 127).to(torch.int8)
    width = values.shape[-1]
    if fractal:
        d0 = 16 if scale is None else 32
        memory = cache.reshape(-1, width // d0, page, d0).transpose(1, 2)
        rows = memory.reshape(-1, width)
    else:
        rows = cache.reshape(-1, width)
    # An extra row receives the tokens that are not stored.
    spare = torch.cat((rows, rows.new_zeros(1, width)))
    slots = torch.where(slots < 0, rows.shape[0], slots)
    rows = spare.index_put((slots,), values)[:-1]
    if fractal:
        rows = rows.reshape(-1, page, width // d0, d0).transpose(1, 2)
    return rows.reshape(cache.shape)


def body_store(b, dtype, cache, values, slots, page, fractal, scale):
    """Build the same; slots are [tokens, 1] and page is a scalar."""
    quantized = scale is not None
    if quantized:
        scaled = b.Clip(b.Round(b.Mul(values, scale)), -128.0, 127.0)
        values = b.Cast(scaled, to="int8")
    else:
        values = b.Cast(values, to=dtype)
    shape = b.Shape(cache)
    width = b.Slice(shape, [3], [4])
    rows = cache
    if fractal:
        d0 = 32 if quantized else 16
        memory = b.Concat([-1], b.Div(width, d0), b.Unsqueeze(page, [0]), [d0], axis=0)
        rows = b.Transpose(b.Reshape(cache, memory), perm=[0, 2, 1, 3])
        blocks = b.Shape(rows)
    rows = b.Reshape(rows, b.Concat([-1], width, axis=0))
    # An extra row receives the tokens that are not stored.
    count = b.Slice(b.Shape(rows), [0], [1])
    blank = b.Expand(b.const([0.0], "float32"), b.Concat([1], width, axis=0))
    spare = b.Concat(rows, b.Cast(blank, to=dtype), axis=0)
    slots = b.Where(b.Less(slots, b.const(0, "int64")), count, slots)
    rows = b.Slice(b.ScatterND(spare, slots, values), [0], count, [0])
    if fractal:
        rows = b.Transpose(b.Reshape(rows, blocks), perm=[0, 2, 1, 3])
    return b.Reshape(rows, shape)

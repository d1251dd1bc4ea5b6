"""Integer caches, scores and results of the inference attention operators."""

from __future__ import annotations

from onnxruntime_npu.opdef import torch

# Shapes of antiquant scales by mode.
SCALE_FORMS = (
    "1 or N*D elements",
    "shape [B, S]",
    "N elements",
    "shape [B, N, S]",
    "[blocks, block_size] elements",
    "[blocks, N, block_size] elements",
)


def number(x):
    """Return the one element of a scale; 64-bit integers hold the bits of a float32."""
    x = x.reshape(1)
    return x.view(torch.float32)[0] if x.dtype in (torch.uint64, torch.int64) else x[0]


def unpack_int4(x):
    """Return the eight signed 4-bit integers of every int32, the lowest bits first."""
    bits = torch.stack([(x >> shift) & 15 for shift in range(0, 32, 4)], -1)
    return (bits - 16 * (bits >= 8).to(torch.int32)).flatten(-2)


def dequantise(operands, kind, scale, offset, mode, joint, size, keys, entries, blocks, dtype):
    """Return a function that dequantises the integers [B, N, S, D] of key or value.

    kind: "key" or "value", which is the second half of a joint scale.
    """
    require, heads = operands.require, operands.kv_heads
    name = "antiquant" if joint else f"{kind}_antiquant"
    modes = 2 if joint else 6
    require(mode in range(modes), f"expected {name}_mode from 0 to {modes - 1}, got {mode}")
    require(
        scale.dtype in (dtype, torch.float32),
        f"expected {name}_scale of query's dtype or float32, got {scale.dtype}",
    )
    shape = list(scale.shape)
    n = scale.numel() // 2 if joint else scale.numel()
    last = shape[-1] if shape else 1
    paged = operands.table is not None
    size_of_mode = (
        heads * size,
        entries * last,
        heads,
        entries * heads * last,
        blocks * operands.block_size,
        blocks * heads * operands.block_size,
    )[mode]
    require(
        (n == size_of_mode or (mode == 0 and n == 1))
        and (mode not in (1, 3) or last >= keys)
        and (mode < 4 or paged)
        and (not joint or (bool(shape) and shape[0] == 2)),
        f"expected {name}_scale with {'two times ' if joint else ''}{SCALE_FORMS[mode]} for "
        f"{name}_mode {mode}{' and a block_table' if mode >= 4 and not paged else ''}, got {shape}",
    )
    require(
        offset is None or (offset.dtype == scale.dtype and offset.numel() == scale.numel()),
        f"expected {name}_offset like {name}_scale, {scale.dtype} {shape}, got "
        f"{'' if offset is None else f'{offset.dtype} {list(offset.shape)}'}",
    )

    def broadcast(x):
        """Return the scales in a form that broadcasts to [B, N, S, D]."""
        x = x.reshape(2 if joint else 1, -1)[int(joint and kind == "value")]
        if mode == 0:
            return x.reshape(1, 1, 1, 1) if n == 1 else x.reshape(1, heads, 1, size)
        if mode == 2:
            return x.reshape(1, heads, 1, 1)
        if mode in (1, 3):
            return x.reshape(entries, heads if mode == 3 else 1, last, 1)[:, :, :keys]
        pages = x.reshape(blocks, heads if mode == 5 else 1, operands.block_size, 1)
        return operands.from_pages(pages)

    def apply(x):
        x = x.to(scale.dtype)
        if offset is not None:
            x = x + broadcast(offset)
        return x * broadcast(scale)

    return apply


def quantise(require, out, scale, offset):
    """Return [B, N, S, D] as int8, with one scale, or one per head and column."""
    columns = out.shape[1] * out.shape[3]
    require(
        scale.numel() in (1, columns),
        f"expected quant_scale2 with 1 or {columns} elements, got {list(scale.shape)}",
    )
    require(
        offset is None or (offset.dtype == scale.dtype and offset.numel() == scale.numel()),
        f"expected quant_offset2 like quant_scale2, {scale.dtype} {list(scale.shape)}, got "
        f"{'' if offset is None else f'{offset.dtype} {list(offset.shape)}'}",
    )

    def spread(x):
        if x.numel() == 1:
            return x.reshape(1, 1, 1, 1).to(out.dtype)
        return x.reshape(1, out.shape[1], 1, out.shape[3]).to(out.dtype)

    out = out * spread(scale)
    if offset is not None:
        out = out + spread(offset)
    return out.round().clamp(-128, 127).to(torch.int8)

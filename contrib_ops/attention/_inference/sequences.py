"""Lengths and masks of the inference attention operators, in plain torch."""

from __future__ import annotations

from onnxruntime_npu.opdef import torch

from .._patterns import COMPRESSED


def lengths_per_batch(require, name, lengths, batch, limit, like):
    """Return the lengths as [B or 1]; `limit` where there is no list."""
    if lengths is None:
        return integers([limit], like)
    count = len(lengths)
    require(
        count in (1, batch) or count > batch,
        f"expected {name} with 1 or {batch} entries, got {count}",
    )
    lengths = list(lengths) if count == 1 else list(lengths)[:batch]
    for b, length in enumerate(lengths):
        require(
            0 <= length <= limit,
            f"expected {name} in [0, {limit}], got {length} for batch entry {b}",
        )
    return integers(lengths, like)


def integers(values, like):
    """Return the list as int64 [n]; an entry that is a symbol stays one."""
    if all(type(n) is int for n in values):
        return torch.tensor(values, dtype=torch.int64, device=like.device)
    entries = [torch.full((1,), n, dtype=torch.int64, device=like.device) for n in values]
    return torch.cat(entries)


def packed_rows(require, name, ends, limit, like):
    """Return lengths [B + 1] and, for each of `limit` packed rows, sequence and position [T].

    Rows after the last sequence belong to an additional one of length 0.
    """
    begin = 0
    for end in ends:
        require(
            begin <= end <= limit,
            f"expected {name} to ascend within [0, {limit}], got {end} behind {begin}",
        )
        begin = end
    device = like.device
    borders = integers([0, *ends], like)
    row = torch.arange(limit, device=device)
    sequence = torch.searchsorted(borders[1:].contiguous(), row, right=True)
    lengths = torch.cat([borders.diff(), borders.new_zeros(1)])
    return lengths, sequence, row - borders[sequence]


def is_compressed(mask):
    """Whether the mask has the shape of a compressed pattern."""
    shape = list(mask.shape)
    square = len(shape) in (2, 3, 4) and shape[-2] == COMPRESSED and shape[-1] == COMPRESSED
    return square and all(n == 1 for n in shape[:-2])


def full_mask(require, mask, batch, rows, keys, paged, decode):
    """Return atten_mask as bool [B or 1, 1, Sq, Skv], after checking its shape."""
    shape = list(mask.shape)
    per_batch = decode and len(shape) == 2
    leading = shape[:1] if per_batch else shape[:-2]
    require(
        len(shape) >= 2
        and (shape[-1] == keys or (paged and shape[-1] > keys))
        and (shape[-2] == rows or per_batch)
        and leading in ([], [1], [batch], [1, 1], [batch, 1]),
        f"expected atten_mask of shape [{rows}, {keys}], [1 or {batch}, {rows}, {keys}] or "
        f"[1 or {batch}, 1, {rows}, {keys}]{' or [B, Skv]' if decode else ''}, got {shape}",
    )
    mask = (mask != 0).reshape(leading[0] if leading else 1, 1, rows, shape[-1])
    return mask[..., :keys]


def packed_mask(require, mask, batch, rows, keys, layout):
    """Return atten_mask of packed sequences as bool [B or 1, S, K], after checking its shape."""
    shape = list(mask.shape)
    require(
        len(shape) in (2, 3, 4)
        and shape[-2] >= rows
        and shape[-1] >= keys
        and (len(shape) == 2 or shape[0] in (1, batch))
        and (len(shape) < 4 or shape[1] == 1),
        f"expected atten_mask of shape [>= {rows}, >= {keys}], "
        f"[1 or {batch}, >= {rows}, >= {keys}] or [1 or {batch}, 1, >= {rows}, >= {keys}] "
        f"for input_layout {layout}, got {shape}",
    )
    return (mask != 0).reshape(1 if len(shape) == 2 else shape[0], *shape[-2:])

"""Floats of 8 and 4 bits with scales, as compressed-tensors stores them, restored as floats.

``weight`` float8 [out, in], or ``weight_packed`` uint8 [out, in / 2] of float4 (E2M1), the lower
bits first. ``weight_scale`` [1], [out, 1], [out, groups] or a number for each block of outputs and
inputs: a float, or uint8 for a power of two; divided by ``weight_global_scale`` if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..weights.lazy_weight import LazyWeight
from .format import check_shape, group_size, taken

_FLOAT4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_EXPONENT_OF_1 = 127


def scaled_floats(
    tensors: Mapping[str, torch.Tensor], described: Mapping[str, Any], sizes: tuple[int, int]
) -> torch.Tensor | None:
    """Return the weight [out, in], computed when it is used; None if the layer has integers.

    ``described``: what config.json says of weights. Raises ValueError if tensors do not fit.
    """
    rows, columns = sizes
    weight = tensors.get("weight", tensors.get("weight_packed"))
    if weight is None or weight.dtype not in (torch.float8_e4m3fn, torch.uint8):
        return None
    bits = 4 if weight.dtype == torch.uint8 else 8
    if described.get("num_bits", 8) != bits or not described.get("symmetric", True):
        raise ValueError(
            f"expected symmetric floats of 4 or 8 bits, got {described.get('num_bits')} bits, "
            f"symmetric {described.get('symmetric')}, in {weight.dtype}"
        )
    check_shape("weight", weight, columns, rows * bits // 8)
    scale = _scale(tensors)
    if described.get("strategy") == "block":
        high, wide = described["block_structure"]
    else:
        scale = scale.reshape(1, 1) if scale.numel() == 1 else scale.reshape(columns, -1)
        high = columns if scale.numel() == 1 else 1
        wide = group_size(rows, scale.shape[1], described.get("group_size"))
    check_shape("weight_scale", scale, -(-columns // high), -(-rows // wide))

    def product() -> torch.Tensor:
        values = weight.float() if bits == 8 else _float4(weight)
        spread = scale.repeat_interleave(wide, 1)[:, :rows].repeat_interleave(high, 0)
        return values * spread[:columns]

    return LazyWeight.computed(product, (columns, rows), torch.float32)


def _scale(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    stored = taken(tensors, "weight_scale")
    if stored.dtype == torch.uint8:
        return torch.exp2(stored.float() - _EXPONENT_OF_1)
    whole = tensors.get("weight_global_scale")
    return stored.float() if whole is None else stored.float() / whole.reshape(1)


def _float4(packed: torch.Tensor) -> torch.Tensor:
    """Return the values [out, in] of bytes [out, in / 2]."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).int()
    return _FLOAT4[codes & 7] * torch.where(codes > 7, -1.0, 1.0)

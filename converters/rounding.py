"""Round-to-nearest with the scale of each group that has the smallest squared error."""

from __future__ import annotations

import torch

_CANDIDATES = 24
_SMALLEST = 0.6  # of the scale that just represents the largest magnitude
_CHUNK_ELEMENTS = 1 << 20  # of temporaries


def quantized_columns(
    weight: torch.Tensor, bits: int, group_size: int, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a weight, symmetrically, in groups of ``group_size`` input features.

    Args:
        weight: [out_features, in_features], any float dtype.
        bits: 8 or 4.
        group_size: input features that share a scale; 0 for all. The last group may be smaller.
        scale_dtype: dtype in which the scales are stored; integers are chosen for these.

    Returns:
        (integers, scales): int8 [in_features, out_features] and [groups, out_features].

    """
    rows, columns = weight.shape
    group = group_size or max(columns, 1)
    groups = -(-columns // group)
    integers = torch.empty(columns, rows, dtype=torch.int8, device=weight.device)
    scales = torch.empty(groups, rows, dtype=scale_dtype, device=weight.device)
    step = max(1, _CHUNK_ELEMENTS // max(columns, 1))
    for begin in range(0, rows, step):
        part = weight[begin : begin + step].detach().float()
        padded = torch.nn.functional.pad(part, (0, groups * group - columns))
        values, chosen = _best(padded.unflatten(1, (groups, group)), bits, scale_dtype)
        integers[:, begin : begin + step] = values.flatten(1)[:, :columns].t()
        scales[:, begin : begin + step] = chosen.t()
    return integers, scales


def _best(
    values: torch.Tensor, bits: int, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers [rows, groups, group] and the scales [rows, groups] they are for."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    largest = values.abs().amax(-1)
    best_error = torch.full_like(largest, torch.inf)
    best_scale = torch.ones_like(largest)
    for factor in torch.linspace(1.0, _SMALLEST, _CANDIDATES).tolist():
        # As it is stored; a group of zeros, or one whose scale underflows, keeps a scale of 1.
        scale = (largest / high * factor).to(scale_dtype).float()
        scale = torch.where(scale > 0, scale, 1.0)
        restored = _rounded(values, scale, low, high) * scale.unsqueeze(-1)
        error = (restored - values).square().sum(-1)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale = torch.where(better, scale, best_scale)
    return _rounded(values, best_scale, low, high).to(torch.int8), best_scale.to(scale_dtype)


def _rounded(values: torch.Tensor, scale: torch.Tensor, low: int, high: int) -> torch.Tensor:
    return (values / scale.unsqueeze(-1)).round().clamp(low, high)

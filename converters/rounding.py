"""Round-to-nearest with the scale of each group that has the smallest squared error."""

from __future__ import annotations

import torch

_CANDIDATES = 24
_SMALLEST = 0.6  # of the scale that just represents the largest magnitude
_CHUNK_ELEMENTS = 1 << 20  # of temporaries


def quantized_columns(
    weight: torch.Tensor,
    bits: int,
    group_size: int,
    scale_dtype: torch.dtype,
    factors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a weight, symmetrically, in groups of ``group_size`` input features.

    Args:
        weight: [out_features, in_features], any float dtype.
        bits: 8 or 4.
        group_size: input features that share a scale; 0 for all. The last group may be smaller.
        scale_dtype: dtype in which the scales are stored; integers are chosen for these.
        factors: by which the weights of each input feature are multiplied before, [in_features].

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
        part = part if factors is None else part * factors
        padded = torch.nn.functional.pad(part, (0, groups * group - columns))
        values, chosen = _best(padded.unflatten(1, (groups, group)), bits, scale_dtype)
        integers[:, begin : begin + step] = values.flatten(1)[:, :columns].t()
        scales[:, begin : begin + step] = chosen.t()
    return integers, scales


def _best(
    values: torch.Tensor, bits: int, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return integers [rows, groups, group] and the scales [rows, groups] they are for."""
    scale = best_scales(values, bits, scale_dtype)
    return rounded(values, scale.unsqueeze(-1), bits).to(torch.int8), scale.to(scale_dtype)


def best_scales(
    values: torch.Tensor,
    bits: int,
    scale_dtype: torch.dtype,
    importance: torch.Tensor | float = 1.0,
) -> torch.Tensor:
    """Return the scale of each group with the smallest squared error.

    Integers reach one further below zero than above it. Of 4 bits that is a fifteenth of the
    range, so scales of both signs are tried, with the largest magnitude at either end.

    Args:
        values: [.., group], float32.
        bits: 8 or 4.
        scale_dtype: dtype in which the scales will be stored.
        importance: factors of the squared errors, [.., group].

    Returns:
        float32 [..], values that ``scale_dtype`` has.

    """
    low, high = _range(bits)
    largest = values.abs().amax(-1)
    ends = [largest / high]
    if bits == 4:
        extreme = values.gather(-1, values.abs().argmax(-1, keepdim=True)).squeeze(-1)
        ends.append(extreme / low)
    best_error = torch.full_like(largest, torch.inf)
    best_scale = torch.ones_like(largest)
    for factor in torch.linspace(1.0, _SMALLEST, _CANDIDATES // len(ends)).tolist():
        for end in ends:
            # As it is stored; a group of zeros, or one whose scale underflows, has a scale of 1.
            scale = (end * factor).to(scale_dtype).float()
            scale = torch.where(scale != 0, scale, 1.0)
            restored = rounded(values, scale.unsqueeze(-1), bits) * scale.unsqueeze(-1)
            error = ((restored - values).square() * importance).sum(-1)
            better = error < best_error
            best_error = torch.where(better, error, best_error)
            best_scale = torch.where(better, scale, best_scale)
    return best_scale


def rounded(values: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the integers, as floats, that stand for values with a scale."""
    return (values / scale).round().clamp(*_range(bits))


def _range(bits: int) -> tuple[int, int]:
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

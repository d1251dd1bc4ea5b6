"""Rounding to int4 that makes up for its errors, by what the layer's inputs are like.

The columns of a weight are rounded one after the other. What rounding one of them changes in the
layer's outputs is taken back, in the least squares sense, by the columns that are still floats: the
method of "GPTQ" (Frantar et al., 2022), with the inverse of the inputs' second moments.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .rounding import best_scales, rounded

_BITS, _LOW, _HIGH = 4, -8, 7
_BLOCK = 32  # columns between two updates of all the others
# Second moments of a page of text are noisy; as much of their mean is added to each input's.
_DAMPING = 0.3
_CANDIDATES = 8
_SMALLEST = 0.65  # of the range of a group's values

# Of offsets: one byte holds such eighths and an integer (kFraction of rounded_vnni_exact.cc), so
# that the kernel adds them once instead of multiplying them with the sums of its inputs.
_PARTS, _LEAST, _MOST = 8, -8.0, 8.875

_Grid = tuple[torch.Tensor, torch.Tensor]  # scales and offsets [rows]


def compensated_columns(
    weight: torch.Tensor, moments: torch.Tensor, group_size: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Round a weight to int4, in groups of ``group_size`` input features.

    Args:
        weight: [out_features, in_features], any float dtype.
        moments: second moments of the inputs, float32 [in_features, in_features].
        group_size: input features that share a scale; 0 for all. The last group may be smaller.
        dtype: dtype in which scales and offsets are stored; integers are chosen for these.

    Returns:
        (integers, scales, offsets): int8 [in_features, out_features], [groups, out_features], and
        the same, or None if all are 0. They stand for ``(integer + offset) * scale``.

    """
    # A plain tensor to change, of whatever kind the parameter is.
    rest = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    rest.copy_(weight.detach())
    rows, columns = rest.shape
    groups = list(torch.arange(columns).split(group_size or columns))
    damped = moments.clone()
    # Inputs that are all zeros leave nothing to make up for.
    damped.diagonal().add_(_DAMPING * float(moments.diagonal().mean()) or 1.0)
    importance = damped.diagonal().clone()
    inverse = torch.linalg.cholesky(
        torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True
    )
    grid = _grid_for(rest, groups, importance, dtype)
    integers = torch.empty(columns, rows, dtype=torch.int8)
    grids = []
    for group in groups:
        begin, end = int(group[0]), int(group[-1]) + 1
        scale, offset = grid(rest[:, begin:end], importance[begin:end], dtype)
        grids.append((scale, offset))
        for first in range(begin, end, _BLOCK):
            last = min(end, first + _BLOCK)
            errors = torch.empty(rows, last - first)
            for column in range(first, last):
                integer = rounded(rest[:, column] - offset * scale, scale, _BITS)
                integers[column] = integer.to(torch.int8)
                error = (rest[:, column] - (integer + offset) * scale) / inverse[column, column]
                rest[:, column:last] -= torch.outer(error, inverse[column, column:last])
                errors[:, column - first] = error
            rest[:, last:] -= errors @ inverse[first:last, last:]
    scales, offsets = (torch.stack(each).to(dtype) for each in zip(*grids, strict=True))
    return integers, scales, offsets if bool(offsets.any()) else None


def _grid_for(
    weight: torch.Tensor,
    groups: list[torch.Tensor],
    importance: torch.Tensor,
    dtype: torch.dtype,
) -> Callable[[torch.Tensor, torch.Tensor, torch.dtype], _Grid]:
    """Return how to choose the scales and offsets of a weight's groups: with offsets or without.

    Offsets cost a tenth of the weight's memory, and of the time of one row: only a weight whose
    error they make smaller has them.
    """
    errors = []
    for grid in (_symmetric, _with_offsets):
        total = 0.0
        for group in groups:
            values = weight[:, group]
            scale, offset = (each[:, None] for each in grid(values, importance[group], dtype))
            restored = (rounded(values - offset * scale, scale, _BITS) + offset) * scale
            total += float(((restored - values).square() @ importance[group]).sum())
        errors.append(total)
    return _with_offsets if errors[1] < errors[0] else _symmetric


def _symmetric(values: torch.Tensor, importance: torch.Tensor, dtype: torch.dtype) -> _Grid:
    scale = best_scales(values, _BITS, dtype, importance)
    return scale, torch.zeros_like(scale)


def _with_offsets(values: torch.Tensor, importance: torch.Tensor, dtype: torch.dtype) -> _Grid:
    """Choose among ranges of the values, shrunken towards their middle or with 0 on the grid."""
    low, high = values.aminmax(dim=1)
    best = torch.full_like(low, torch.inf)
    scales, offsets = torch.ones_like(low), torch.zeros_like(low)
    for factor in torch.linspace(1.0, _SMALLEST, _CANDIDATES).tolist():
        scale = ((high - low) * (factor / (_HIGH - _LOW))).to(dtype).float()
        scale = torch.where(scale > 0, scale, 1.0)
        centred = (high + low) / (2 * scale) - (_HIGH + _LOW) / 2
        with_zero = torch.round(low * factor / scale) - _LOW
        for wanted in (centred, with_zero):
            offset = (torch.round(wanted * _PARTS) / _PARTS).clamp(_LEAST, _MOST)
            shift = (offset * scale)[:, None]
            restored = rounded(values - shift, scale[:, None], _BITS) * scale[:, None] + shift
            error = (restored - values).square() @ importance
            better = error < best
            best = torch.where(better, error, best)
            scales = torch.where(better, scale, scales)
            offsets = torch.where(better, offset, offsets)
    return scales, offsets


class RoundsWhenCalled:
    """Rounds each layer when a batch reaches it, with the inputs that it then has.

    Its output becomes that of the rounded layer, so that later layers make up for it, too, and one
    pass and the moments of one layer at a time suffice. The product of the layer itself is not
    needed. The model itself stays as it is.
    """

    def __init__(self, rounded: Callable[[torch.nn.Linear, torch.Tensor], torch.nn.Module]) -> None:
        """Round layers by ``rounded(layer, moments)``."""
        self.results: dict[str, torch.nn.Module] = {}
        self._rounded = rounded

    def __call__(self, name: str, layer: torch.nn.Linear, given: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer's rounded form."""
        if name not in self.results:
            rows = given.detach().reshape(-1, layer.in_features).float()
            moments = rows.t() @ rows / max(len(rows), 1)
            if not bool(moments.isfinite().all()):
                raise ValueError(
                    f"[quantize_weights] expected calibration with finite inputs of every "
                    f"layer, got infinity or NaN at {name}"
                )
            self.results[name] = self._rounded(layer, moments)
        output: torch.Tensor = self.results[name](given)
        return output

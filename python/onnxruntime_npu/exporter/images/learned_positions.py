"""Learned positions of a square grid, spread over the grid of an image.

Those of Qwen3-VL are gathered and weighted by the model itself; those of GLM-4V are sampled by
grid_sample, in the place of which there is a product of matrices here.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..proof import NotProven
from .one_length import OneLength

_CUBIC = -0.75  # of the kernel of Keys, as torch has it


def between_learned(
    places: torch.Tensor, side: int, mode: str, align_corners: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the learned positions [P, 2, N] around places [P, 2] of a grid, and their weights.

    Of the N rows and N columns around each place, of a square of ``side``, over which the grid is
    spread as F.interpolate does. ``mode``: bilinear, of which N is 2, or bicubic, of which it is 4.
    Raises NotProven for another one.
    """
    counts = places.amax(0) + 1
    if align_corners:
        spread = places.float() * (side - 1) / (counts - 1).clamp(min=1)
    else:
        spread = (places.float() + 0.5) * side / counts - 0.5
    first, reach = {"bilinear": (0, 2), "bicubic": (-1, 4)}.get(mode, (0, 0))
    if not reach:
        raise NotProven(f"expected positions between learned ones, bilinear or bicubic, got {mode}")
    around = spread.floor()[..., None] + torch.arange(first, first + reach)
    distance = (spread[..., None] - around).abs()
    weights = 1 - distance if mode == "bilinear" else _cubic(distance)
    return around.clamp(0, side - 1).long(), weights


def learned_points(owner: Any, places: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the options of a model's vision that say which learned positions it takes.

    owner: the module that has their settings; places: [P, 2], row and column of each patch.
    """
    side = int(owner.num_grid_per_side)
    around, weights = between_learned(
        places, side, owner.interpolation_mode, owner.interpolation_align_corners
    )
    (rows, columns), (of_rows, of_columns) = around.unbind(1), weights.unbind(1)
    return {
        "interp_indices": (rows[..., None] * side + columns[:, None]).flatten(1),
        "interp_weights": (of_rows[..., None] * of_columns[:, None]).flatten(1),
    }


def _cubic(distance: torch.Tensor) -> torch.Tensor:
    """Return the weights of points at distances below 2."""
    near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance * distance + 1
    far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
    return torch.where(distance <= 1, near, far)


class LearnedPositions(nn.Module):
    """Adds learned positions to patches of one image; of several, the model's own module does."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own
        self.side = math.isqrt(own.position_embedding.weight.shape[0])

    def forward(
        self, patches: torch.Tensor, lengths: Any, grids: Any, rows: torch.Tensor, columns: Any
    ) -> torch.Tensor:
        """Return [P, H] of patches [P, H], whose rows and columns are [P]."""
        if not isinstance(lengths, OneLength):
            of_several: torch.Tensor = self.own(patches, lengths, grids, rows, columns)
            return of_several
        places = torch.stack([rows, columns], -1)
        around, weights = between_learned(places, self.side, self.own.interpolated_method, False)
        # As much as there is for each row and column: points beyond the border are those on it.
        found = (weights[..., None] * (around[..., None] == torch.arange(self.side))).sum(2)
        shares = (found[:, 0, :, None] * found[:, 1, None, :]).flatten(1)
        table = self.own.position_embedding.weight
        return patches + (shares @ table.float()).to(table.dtype)

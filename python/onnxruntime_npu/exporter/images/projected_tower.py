"""Vision that returns patches, which a projector merges by their grid, as in PaddleOCR-VL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .learned_positions import learned_points
from .one_length import OneLength
from .patch_tower import PatchTower, pair


class Blocks:
    """In the place of grids of images, of which each block of patches is one more in time."""

    def __init__(self, count: Any, merge: int) -> None:
        self._count, self._merge = count, merge

    def prod(self, dim: int) -> OneLength:
        """Return how many patches there are."""
        return OneLength(self._count)

    def __iter__(self) -> Iterator[tuple[Any, int, int]]:
        yield self._count // self._merge**2, self._merge, self._merge


class ProjectedTower(PatchTower):
    """``model.visual`` and ``model.projector``: patches with learned positions to features."""

    by_rows = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._embeddings = model.base_model.visual.vision_model.embeddings
        convolution = self._embeddings.patch_embedding
        self.patch = (int(convolution.in_channels), *pair(convolution.kernel_size))
        self.learned = int(self._embeddings.num_grid_per_side)

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether the model has such a vision."""
        owner = model.base_model
        return hasattr(getattr(owner, "visual", None), "vision_model") and hasattr(
            owner, "projector"
        )

    def features(
        self, patches: torch.Tensor, positions: torch.Tensor, windows: torch.Tensor | None
    ) -> torch.Tensor:
        """Return features of blocks: the vision has no order but that of positions."""
        owner = self.model.base_model
        count = patches.shape[0]
        encoded = owner.visual(
            pixel_values=patches.to(owner.visual.dtype)[None],
            grid_thw=None,  # from which positions and lengths would be computed
            position_ids=positions,
            cu_seqlens=OneLength(count),
            **learned_points(self._embeddings, positions),
        )
        features: torch.Tensor = owner.projector(
            encoded.last_hidden_state, Blocks(count, self.merge)
        )
        return features

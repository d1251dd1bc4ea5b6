"""What makes features of patches in a model, called for one image: an interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch


class PatchTower(ABC):
    """The vision of a model, from patches in blocks to a feature of each block.

    Attributes:
        merge: rows and columns of patches in a block.
        patch: the shape of a patch as the model takes it.
        window: rows and columns of patches of the windows that some layers attend within.
        learned: rows and columns of the learned positions, 0 if there are none.
        stacked: layers of the text that take features, too.
    """

    by_rows: ClassVar[bool] = False  # whether the model takes patches row by row, not by blocks
    window: int | None = None
    learned = 0
    stacked = 0

    def __init__(self, model: Any, merge: int | None = None) -> None:
        """Take the rows and columns of a block, by default those that the model configures."""
        self.model = model
        self.merge = int(model.config.vision_config.spatial_merge_size) if merge is None else merge
        self.patch: tuple[int, ...] = ()

    @staticmethod
    @abstractmethod
    def takes(model: Any) -> bool:
        """Whether a model has such a vision."""

    @abstractmethod
    def features(
        self, patches: torch.Tensor, positions: torch.Tensor, windows: torch.Tensor | None
    ) -> torch.Tensor:
        """Return features [F, H] of patches [P, ..] in blocks.

        positions: [P, 2], row and column; windows: [W, L], the patches of each.
        """

    def given(self, sizes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what the model takes in addition to patches, of images of sizes [images, 3]."""
        return {"image_grid_thw": sizes}


def pair(size: Any) -> list[int]:
    """Return rows and columns of what may be one number."""
    return list(size) if isinstance(size, (list, tuple)) else [size, size]

"""Images as patches of any number, as in Qwen2-VL.

An image is a grid of patches, in blocks of ``merge`` times ``merge`` that become one feature each.
The host computes where patches and tokens are (generation/images/patch_positions.py); the graphs
take it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...generation.images.patch_positions import (
    IMAGE,
    grids_of,
    patch_windows,
    token_positions,
)
from ...subclasses import subclasses_in
from ..proof import NotProven
from .one_length import without_splits
from .patch_grid import PatchGridPart, by_rows
from .patch_tower import PatchTower
from .position_proof import check_token_positions
from .video_proof import Videos

_BLOCKS = (2, 3)  # rows and columns of blocks to trace with: all numbers differ, and none is 1

# Of the file's metadata: rows and columns of a window that attention stays within, whether the
# model takes patches row by row, and how many positions a token has, or 0 where it is counted.
WINDOW = "patches_of_window"
BY_ROWS, AXES = "patches_by_rows", "position_axes"
GIVEN = "arguments"  # names of what the model takes of images


class PatchPart(PatchGridPart):
    """The patches of one image to features, by the model's ``tower``."""

    kind = "patches"
    videos: Videos | None = None  # how the model takes them, if that is proven

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        kinds = _towers_of(model)
        if len(kinds) > 1:
            raise NotProven(f"expected one kind of vision, got {[each.__name__ for each in kinds]}")
        self.tower = kinds[0](model)
        self._functions = without_splits()
        self.merge, self.stacked = self.tower.merge, self.tower.stacked
        self.patch = self.tower.patch
        # More than a window, and no whole number of them.
        least = (self.tower.window or 0) // self.merge
        self.grid = tuple((least + blocks) * self.merge for blocks in _BLOCKS)
        if hasattr(model.base_model, "get_rope_index"):
            self.axes = (3,)  # time, row and column
            check_token_positions(model, self.merge)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32 of pixel_values [P, ..] of P patches in blocks.

        ``inputs``: also patch_positions [P, 2], the row and the column of each patch, and with
        windows patch_windows [W, L], the patches of each, P where it reaches beyond the image.
        """
        patches, positions, *windows = inputs
        with self._functions.replaced():
            features = self.tower.features(patches, positions, windows[0] if windows else None)
        return features.float()

    @property
    def input_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the graph inputs, in order."""
        names = PatchGridPart.input_names
        return names if self.tower.window is None else (*names, "patch_windows")

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether the model takes patches and a grid instead of images of one size."""
        return bool(_towers_of(model))

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the model."""
        window = {} if self.tower.window is None else {WINDOW: str(self.tower.window)}
        return {
            **super().metadata(),
            BY_ROWS: str(int(self.tower.by_rows)),
            AXES: str(self.axes[0] if self.axes else 0),
            GIVEN: " ".join(self.as_given([self.example()])),
            **window,
            **({} if self.videos is None else self.videos.metadata()),
        }

    def positions(
        self, input_ids: torch.Tensor, mask: torch.Tensor, given: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return positions [*axes, B, S] of tokens, as the host computes them."""
        if not self.axes:
            return super().positions(input_ids, mask, given)
        kinds = np.where(input_ids.numpy() == int(self.model.config.image_token_id), IMAGE, 0)
        grids = {IMAGE: grids_of(given["image_grid_thw"].numpy())}
        found, _ = token_positions(kinds, mask.numpy(), grids, self.merge)
        return torch.from_numpy(found)

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images as the model takes them."""
        sizes = torch.tensor([[1, *(places.amax(0) + 1).tolist()] for _, places, *_ in images])
        pixels = [
            by_rows(patches, places) if self.tower.by_rows else patches
            for patches, places, *_ in images
        ]
        return {"pixel_values": torch.cat(pixels), **self.tower.given(sizes)}

    def examples(self) -> list[tuple[torch.Tensor, ...]]:
        """Return images to prove features of: also narrow ones, longer than learned positions."""
        longest = (self.tower.learned // self.merge + _BLOCKS[1]) * self.merge
        sizes = self.grid, (self.merge, longest), (longest, self.merge)
        return [self.image_of(*size) for size in sizes]

    def image_of(self, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
        """Return a random image of so many rows and columns of patches, and its windows."""
        pixels, places = super().image_of(rows, columns)
        if self.tower.window is None:
            return pixels, places
        return pixels, places, torch.from_numpy(patch_windows(places.numpy(), self.tower.window))

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of inputs and output, with names for dynamic sizes."""
        windows: dict[str, tuple[str | int, ...]] = {}
        if self.tower.window is not None:
            windows["patch_windows"] = ("windows", self.tower.window**2)
        return {**super().dimensions(), **windows}


def _towers_of(model: Any) -> list[type[PatchTower]]:
    """Return the kinds of vision in this folder that a model has."""
    return [each for each in subclasses_in(__package__, PatchTower) if each.takes(model)]

"""The patches of one image and their places, which the host computes from its size.

The graphs take patches in blocks of ``merge`` times ``merge`` that become one feature each.
"""

from __future__ import annotations

import torch

from ...generation.images.patch_positions import patch_positions
from .part import ImagePart

MERGE = "spatial_merge_size"  # of the file's metadata: patches of an image that become one feature


class PatchGridPart(ImagePart):
    """The patches of one image to features: base of the kinds that differ in what models take.

    Attributes:
        merge: rows and columns of patches in a block.
        patch: the shape of a patch as the model takes it.
        grid: rows and columns of the image to trace with.
    """

    input_names: tuple[str, ...] = ("pixel_values", "patch_positions")
    merge: int
    patch: tuple[int, ...]
    grid: tuple[int, ...]

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        return self.image_of(*self.grid)

    def image_of(self, rows: int, columns: int) -> tuple[torch.Tensor, ...]:
        """Return a random image of so many rows and columns of patches."""
        generator = torch.Generator().manual_seed(3)
        pixels = torch.randn(rows * columns, *self.patch, generator=generator)
        return pixels, torch.from_numpy(patch_positions(rows, columns, self.merge))

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of inputs and output, with names for dynamic sizes."""
        with torch.no_grad():
            features = self(*self.example())
        return {
            "pixel_values": ("patches", *self.patch),
            "patch_positions": ("patches", 2),
            "image_features": ("features", features.shape[1]),
        }

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the model."""
        return {**super().metadata(), MERGE: str(self.merge)}


def by_rows(patches: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return patches [P, ..] row by row, whose rows and columns are [P, 2]."""
    columns = places[:, 1].max() + 1
    return patches[(places[:, 0] * columns + places[:, 1]).argsort()]

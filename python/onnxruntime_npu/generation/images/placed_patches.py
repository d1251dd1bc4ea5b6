"""Images of any size as patches with their places, padded to as many for each, as in Gemma 4."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Prompt, checked_floats
from .patch_images import PatchImages
from .patch_positions import patch_positions


class PlacedPatches(PatchImages):
    """pixel_values [images, patches, values] float32 and image_position_ids [images, patches, 2].

    The latter are the column and the row of each patch, row by row, and -1 for padding after them.
    """

    kind = "placed_patches"
    names = ("pixel_values", "image_position_ids")

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        self._places = int(metadata["positions_of_patches"])

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image."""
        pixels = checked_floats(given, "pixel_values", ["images", "patches", *self._patch])
        positions = np.asarray(given.get("image_position_ids", np.zeros((0, 0, 2), np.int64)))
        expected = [*pixels.shape[:2], 2]
        if positions.dtype.kind not in "iu" or list(positions.shape) != expected:
            raise ArgumentError(
                f"expected image_position_ids as integers {expected}, as pixel_values "
                f"{list(pixels.shape)}, got {positions.dtype} {list(positions.shape)}"
            )
        sizes = [self._size(each) for each in positions.astype(np.int64)]
        return [self._of_image(image, *size) for image, size in zip(pixels, sizes, strict=True)]

    def _size(self, positions: np.ndarray) -> tuple[int, int]:
        """Return the rows and columns of an image; ArgumentError if its patches are no grid."""
        columns, rows = (positions.max(0, initial=-1) + 1).tolist()
        whole = all(1 <= n <= self._places and n % self._merge == 0 for n in (rows, columns))
        if whole and rows * columns <= len(positions):
            grid = np.full_like(positions, -1)
            places = patch_positions(rows, columns, 1)
            grid[: len(places)] = places[:, ::-1]
            if (positions == grid).all():
                return rows, columns
        raise ArgumentError(
            f"expected image_position_ids of the column and the row of each patch of an image, row "
            f"by row, then -1, with rows and columns that are multiples of {self._merge} and at "
            f"most {self._places}, got up to {columns} columns and {rows} rows"
        )

"""Images of any size as patches, and positions of tokens, as in Qwen2-VL."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Prompt, checked_floats, checked_integers
from .patch_images import PatchImages
from .patch_positions import check_grids, token_positions


class Patches(PatchImages):
    """pixel_values [patches, ..] float32 of all images, and image_grid_thw [images, 3].

    The latter is 1 and the rows and columns of patches of each image. A patch is [values] or
    [C, height, width], as the model takes it. Where patches are merged by an argument, too,
    image_merge_sizes [images] is the same number for all images.
    """

    kind = "patches"

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        self.names = tuple(metadata["arguments"].split())
        self._in_grids = metadata["position_axes"] != "0"  # tokens; else they are counted

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image, whose patches follow each other."""
        grids = self._grids(given)
        sizes = [rows * columns for _, rows, columns in grids.tolist()]  # of any magnitude
        note = ", as image_grid_thw says"
        shape = [sum(sizes), *self._patch]
        patches = checked_floats(given, "pixel_values", shape, note)
        found = []
        start = 0
        for (_, rows, columns), size in zip(grids.tolist(), sizes, strict=True):
            found.append(self._of_image(patches[start : start + size], rows, columns))
            start += size
        return found

    def positions(
        self, prompt: Prompt, given: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return positions in time, rows and columns, if images are grids of tokens."""
        if not self._in_grids:
            return None
        return token_positions(*prompt, self._grids(given), self._merge)

    def _grids(self, given: Mapping[str, np.ndarray]) -> np.ndarray:
        meaning = "1 and the rows and columns of patches"
        grids = checked_integers(given, "image_grid_thw", 3, meaning)
        check_grids(grids, self._merge)
        merged = np.asarray(given.get("image_merge_sizes", self._merge))
        if (merged != self._merge).any():
            raise ArgumentError(
                f"expected image_merge_sizes of {self._merge} for each image, got {merged.tolist()}"
            )
        return grids

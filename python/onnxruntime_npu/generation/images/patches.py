"""Images of any size as patches, and positions of tokens in three dimensions, as in Qwen2-VL."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from .features import Images, Prompt, checked_floats, checked_integers
from .patch_positions import check_grids, patch_positions, patch_windows, token_positions


class Patches(Images):
    """pixel_values [patches, values] float32 of all images, and image_grid_thw [images, 3].

    The latter is 1 and the rows and columns of patches of each image.
    """

    kind = "patches"
    names = ("pixel_values", "image_grid_thw")

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        self._values = self._shape("pixel_values")[1]
        self._merge = int(metadata["spatial_merge_size"])  # patches to a token, in a direction
        window = metadata.get("patches_of_window")
        self._window = None if window is None else int(window)  # rows and columns of one

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image, whose patches follow each other."""
        grids = self._grids(given)
        sizes = grids.prod(1)
        note = ", as image_grid_thw says"
        shape = [int(sizes.sum()), self._values]
        patches = checked_floats(given, "pixel_values", shape, note)
        found = []
        start = 0
        for (_, rows, columns), size in zip(grids.tolist(), sizes.tolist(), strict=True):
            image, start = patches[start : start + size], start + size
            places = patch_positions(rows, columns, self._merge)
            inputs = {
                "pixel_values": np.ascontiguousarray(image, np.float32),
                "patch_positions": places,
            }
            if self._window is not None:
                inputs["patch_windows"] = patch_windows(places, self._window)
            found.append(self._run(**inputs))
        return found

    def positions(
        self, prompt: Prompt, given: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return positions in time, rows and columns."""
        return token_positions(*prompt, self._grids(given), self._merge)

    def _grids(self, given: Mapping[str, np.ndarray]) -> np.ndarray:
        meaning = "1 and the rows and columns of patches"
        grids = checked_integers(given, "image_grid_thw", 3, meaning)
        check_grids(grids, self._merge)
        return grids

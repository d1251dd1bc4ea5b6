"""Images of any size as patches: base of the kinds that differ in what processors return."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from .features import Images
from .patch_positions import patch_positions, patch_windows


class PatchImages(Images):
    """The patches of each image, row by row or already in the blocks that become one feature."""

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        self._patch = self._shape("pixel_values")[1:]
        self._merge = int(metadata["spatial_merge_size"])  # patches to a token, in a direction
        self._by_rows = metadata.get("patches_by_rows", "1") == "1"
        window = metadata.get("patches_of_window")
        self._window = None if window is None else int(window)  # rows and columns of one

    def _of_image(self, patches: np.ndarray, rows: int, columns: int) -> np.ndarray:
        """Return the features of an image, whose patches may be followed by padding."""
        places = patch_positions(rows, columns, self._merge)
        if self._by_rows:
            patches = patches[places[:, 0] * columns + places[:, 1]]
        inputs = {
            "pixel_values": np.ascontiguousarray(patches, np.float32),
            "patch_positions": places,
        }
        if self._window is not None:
            inputs["patch_windows"] = patch_windows(places, self._window)
        return self._run(**inputs)

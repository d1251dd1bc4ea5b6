"""Features of images that the caller has, of a model whose own are not exported."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Images, Prompt, checked_floats


class Given(Images):
    """image_features [F, H] float32 of all images, in the order of their tokens.

    Where images are grids, position_ids [3, B, S] int64, too, which default to those of text.
    """

    kind = "given"
    names = ("image_features", "position_ids")

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        self._size = int(metadata["feature_size"])
        self._axes = int(metadata["position_axes"])

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features as they are."""
        found = checked_floats(given, "image_features", ["features", self._size])
        if len(found) != prompt.image_tokens:
            raise ArgumentError(
                f"expected image_features [{prompt.image_tokens}, {self._size}], one for each "
                f"image token, got {list(found.shape)}"
            )
        return [np.ascontiguousarray(found, np.float32)]

    def positions(
        self, prompt: Prompt, given: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the positions as they are, if tokens have more than one."""
        counted = np.maximum(prompt.mask.cumsum(axis=1) - 1, 0)
        if self._axes == 0:
            if "position_ids" in given:
                raise ArgumentError("expected no position_ids: the model counts its tokens")
            return None
        positions = np.asarray(given.get("position_ids", np.tile(counted, (self._axes, 1, 1))))
        expected = [self._axes, *prompt.ids.shape]
        if positions.dtype.kind not in "iu" or list(positions.shape) != expected:
            raise ArgumentError(
                f"expected position_ids as integers {expected}, got {positions.dtype} "
                f"{list(positions.shape)}"
            )
        positions = np.where(prompt.mask != 0, positions, 0).astype(np.int64)
        if positions.min() < 0:
            raise ArgumentError(f"expected position_ids >= 0, got {positions.min()}")
        return positions, positions.max((0, 2)) + 1

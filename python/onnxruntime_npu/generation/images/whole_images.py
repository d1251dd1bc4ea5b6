"""Images of one size, each as a whole and with as many features: the arguments of a prompt."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Images, Prompt, checked_floats

MASK = "pixel_attention_mask"


class WholeImages(Images):
    """pixel_values [images, C, height, width] float32 in the order of their tokens.

    Or [B, images, C, height, width], in which images of zeros are padding. pixel_attention_mask
    [B, images, height, width] may hide nothing else.
    """

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        assert vision is not None
        self._size = self._shape("pixel_values")[1:]
        self._count = int(vision.get_outputs()[0].shape[0])

    @property
    def tokens_per_image(self) -> int:
        """How many tokens each image has."""
        return self._count

    def _images(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the images of a prompt, float32 [images, C, height, width]."""
        images = np.asarray(given.get("pixel_values", []))
        shown = np.asarray(given.get(MASK, np.ones(1, bool)))
        if images.ndim == 5:
            kept = images.any(axis=(2, 3, 4))
            images = images[kept]
            if shown.shape[:2] == kept.shape:
                shown = shown[kept]
        if not shown.all():
            raise ArgumentError(
                f"expected {MASK} of ones for every image: the model takes whole images"
            )
        if images.size == 0:
            images = np.zeros((0, *map(int, self._size)), np.float32)
        images = checked_floats({"pixel_values": images}, "pixel_values", ["images", *self._size])
        if prompt.image_tokens != len(images) * self._count:
            raise ArgumentError(
                f"expected {self._count} image tokens for each of {len(images)} images, got "
                f"{prompt.image_tokens} in all"
            )
        return np.ascontiguousarray(images, np.float32)

"""Images of one size, each with as many features."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Images, Prompt, checked_floats


class OneSize(Images):
    """pixel_values [images, C, height, width] float32 in the order of their tokens.

    Or [B, images, C, height, width], in which images of zeros are padding.
    """

    kind = "one_size"
    names = ("pixel_values",)

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        assert vision is not None
        self._size = self._shape("pixel_values")[1:]
        self._count = int(vision.get_outputs()[0].shape[0])

    @property
    def tokens_per_image(self) -> int:
        """How many tokens each image has."""
        return self._count

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image."""
        images = np.asarray(given.get("pixel_values", []))
        if images.ndim == 5:
            images = images.reshape(-1, *images.shape[2:])
            images = images[images.any(axis=(1, 2, 3))]
        if images.size == 0:
            images = np.zeros((0, *map(int, self._size)), np.float32)
        images = checked_floats({"pixel_values": images}, "pixel_values", ["images", *self._size])
        if prompt.image_tokens != len(images) * self._count:
            raise ArgumentError(
                f"expected {self._count} image tokens for each of {len(images)} images, got "
                f"{prompt.image_tokens} in all"
            )
        return [
            self._run(pixel_values=np.ascontiguousarray(image[None], np.float32))
            for image in images
        ]

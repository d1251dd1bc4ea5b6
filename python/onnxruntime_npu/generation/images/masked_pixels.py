"""Images of any size that a processor pads, with as many features each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Images, Prompt, checked_floats
from .whole_images import MASK


class MaskedPixels(Images):
    """pixel_values [B, images, C, height, width] float32, of which images of zeros are padding.

    pixel_attention_mask [B, images, height, width] integers is 1 for the pixels of an image, which
    begin at the top left; without it, all are.
    """

    kind = "masked_pixels"
    names = ("pixel_values", MASK)

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        assert vision is not None
        self._unit = int(metadata["pixels_of_patch"])
        self._channels = self._shape("pixel_values")[1]
        self._count = int(vision.get_outputs()[0].shape[0])

    @property
    def tokens_per_image(self) -> int:
        """How many tokens each image has."""
        return self._count

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image."""
        shape = ["rows", "images", self._channels, "height", "width"]
        pixels = checked_floats(given, "pixel_values", shape)
        without = (*pixels.shape[:2], *pixels.shape[3:])
        shown = np.asarray(given.get(MASK, np.ones(without, np.int64))) != 0
        if shown.shape != without:
            raise ArgumentError(f"expected {MASK} {list(without)}, got {list(shown.shape)}")
        kept = pixels.any(axis=(2, 3, 4))
        count = int(kept.sum())
        if prompt.image_tokens != count * self._count:
            raise ArgumentError(
                f"expected {self._count} image tokens for each of {count} images, got "
                f"{prompt.image_tokens} in all"
            )
        return [
            self._run(pixel_values=self._cropped(image, mask))
            for image, mask in zip(pixels[kept], shown[kept], strict=True)
        ]

    def _cropped(self, image: np.ndarray, shown: np.ndarray) -> np.ndarray:
        """Return [1, C, height, width], the whole patches of an image without its padding."""
        height, width = (int(n) for n in (shown.any(1).sum(), shown.any(0).sum()))
        expected = np.zeros_like(shown)
        expected[:height, :width] = True
        rows, columns = (n // self._unit * self._unit for n in (height, width))
        if not np.array_equal(shown, expected) or not rows or not columns:
            raise ArgumentError(
                f"expected {MASK} of 1 for at least {self._unit} rows and columns at the top left, "
                f"and of 0 elsewhere"
            )
        return np.ascontiguousarray(image[None, :, :rows, :columns], np.float32)

"""Images of any size, with a feature for each square of pixels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Images, Prompt, checked_floats, checked_integers


class AnySize(Images):
    """pixel_values [images, C, height, width] float32 and image_sizes [images, 2].

    The latter are heights and widths. An image that is smaller than the largest one is padded below
    and on the right.
    """

    kind = "any_size"
    names = ("pixel_values", "image_sizes")

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        self._unit = int(metadata["pixels_of_feature"])
        self._channels = self._shape("pixel_values")[1]

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image."""
        shape = ["images", self._channels, "height", "width"]
        pixels = checked_floats(given, "pixel_values", shape)
        sizes = checked_integers(given, "image_sizes", 2, "height and width")
        if len(sizes) != len(pixels):
            raise ArgumentError(
                f"expected image_sizes [{len(pixels)}, 2] for pixel_values {list(pixels.shape)}, "
                f"got {list(sizes.shape)}"
            )
        unit, limit = self._unit, pixels.shape[2:]
        for size in sizes.tolist():
            if any(n < unit or n % unit or n > most for n, most in zip(size, limit, strict=True)):
                raise ArgumentError(
                    f"expected image_sizes that are multiples of {unit} and at most {list(limit)}, "
                    f"as pixel_values {list(pixels.shape)}, got {size}"
                )
        return [
            self._run(
                pixel_values=np.ascontiguousarray(image[None, :, :height, :width], np.float32)
            )
            for image, (height, width) in zip(pixels, sizes.tolist(), strict=True)
        ]

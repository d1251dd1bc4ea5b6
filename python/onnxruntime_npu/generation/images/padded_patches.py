"""Images of any size as patches, padded to as many for each image, as in LFM2-VL."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...errors import ArgumentError
from .features import Prompt, checked_floats, checked_integers
from .patch_images import PatchImages


class PaddedPatches(PatchImages):
    """pixel_values [images, patches, values] float32 and spatial_shapes [images, 2].

    The latter are the rows and columns of patches of each image, which are its first ones, row by
    row; pixel_attention_mask [images, patches] says the same: 1 for patches that are no padding.
    """

    kind = "padded_patches"
    names = ("pixel_values", "spatial_shapes", "pixel_attention_mask")

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image."""
        pixels = checked_floats(given, "pixel_values", ["images", "patches", *self._patch])
        sizes = self._sizes(pixels, given)
        return [self._of_image(image, *size) for image, size in zip(pixels, sizes, strict=True)]

    def _sizes(self, pixels: np.ndarray, given: Mapping[str, np.ndarray]) -> list[tuple[int, int]]:
        """Return the rows and columns of each image; ArgumentError for impossible ones."""
        sizes = checked_integers(given, "spatial_shapes", 2, "rows and columns of patches")
        images, limit = pixels.shape[:2]
        if len(sizes) != images:
            raise ArgumentError(
                f"expected spatial_shapes [{images}, 2] for pixel_values {list(pixels.shape)}, got "
                f"{list(sizes.shape)}"
            )
        for rows, columns in sizes.tolist():
            whole = all(n >= 1 and n % self._merge == 0 for n in (rows, columns))
            if not whole or rows * columns > limit:
                raise ArgumentError(
                    f"expected spatial_shapes of multiples of {self._merge} and at most {limit} "
                    f"patches, as pixel_values {list(pixels.shape)}, got {[rows, columns]}"
                )
        shown = np.arange(limit) < sizes.prod(1, keepdims=True)
        mask = np.asarray(given.get("pixel_attention_mask", shown))
        if mask.dtype.kind not in "iub" or mask.shape != shown.shape or (mask != shown).any():
            raise ArgumentError(
                f"expected pixel_attention_mask {list(shown.shape)} of 1 for the patches that "
                f"spatial_shapes counts, then 0, got {mask.dtype} {list(mask.shape)}"
            )
        return [(rows, columns) for rows, columns in sizes.tolist()]

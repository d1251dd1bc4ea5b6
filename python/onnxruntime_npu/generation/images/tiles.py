"""Images that are cut into tiles of one size, as in LLaVA-NeXT and LLaVA-OneVision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort

from ...errors import ArgumentError
from .features import Images, Prompt, checked_floats, checked_integers
from .tile_layout import TileLayout

_ALONE = "batch_num_images"


class Tiles(Images):
    """pixel_values [images, tiles, C, height, width] float32 and image_sizes [images, 2].

    The latter are heights and widths of the images; images of fewer tiles are padded. Of a model
    that interpolates, batch_num_images [B]: where a row has several images, each is one tile.
    """

    kind = "tiles"
    names = ("pixel_values", "image_sizes", _ALONE)

    def __init__(self, metadata: Mapping[str, str], vision: ort.InferenceSession | None) -> None:
        super().__init__(metadata, vision)
        self._layout = TileLayout.of_text(metadata["tile_layout"])
        self._tile = self._shape("pixel_values")[1:]

    def features(self, prompt: Prompt, given: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Return the features of each image."""
        pixels = checked_floats(given, "pixel_values", ["images", "tiles", *self._tile])
        sizes = checked_integers(given, "image_sizes", 2, "height and width")
        if len(sizes) != len(pixels) or (sizes < 1).any():
            raise ArgumentError(
                f"expected image_sizes [{len(pixels)}, 2] >= 1 for pixel_values "
                f"{list(pixels.shape)}, got {sizes.tolist()}"
            )
        found = []
        for image, (height, width), alone in zip(
            pixels, sizes.tolist(), self._alone(given, len(pixels)), strict=True
        ):
            size = (height, width) if alone else None
            count = 1 if size is None else self._layout.tiles(size)
            if count > len(image):
                raise ArgumentError(
                    f"expected pixel_values of at least {count} tiles for an image of "
                    f"{height} x {width}, got {len(image)}"
                )
            places, weights = self._layout.places(size)
            inputs = {
                "pixel_values": np.ascontiguousarray(image[:count], np.float32),
                "feature_places": places,
            }
            if self._layout.most_tiles is not None:
                inputs["feature_weights"] = weights
            found.append(self._run(**inputs))
        return found

    def _alone(self, given: Mapping[str, np.ndarray], images: int) -> list[bool]:
        """Return for each image whether it is the only one of its row, or may be taken so."""
        if _ALONE not in given or self._layout.most_tiles is None:
            return [True] * images
        counts = np.asarray(given[_ALONE])
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or (counts < 0).any():
            raise ArgumentError(
                f"expected {_ALONE} as integers [batch] >= 0, got {counts.dtype} "
                f"{list(counts.shape)}"
            )
        if counts.sum() != images:
            raise ArgumentError(
                f"expected {_ALONE} of {images} images, as pixel_values, got {counts.tolist()}"
            )
        return np.repeat(counts == 1, counts).tolist()

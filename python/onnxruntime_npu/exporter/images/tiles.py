"""Images that are cut into tiles of one size, as in LLaVA-NeXT and LLaVA-OneVision.

The host computes which features take the places of tokens (generation/images/tile_layout.py).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ...generation.images.tile_layout import TileLayout
from ..proof import NotProven
from ..replaced_functions import ReplacedFunctions
from .part import ImagePart, own_features

LAYOUT = "tile_layout"  # of the file's metadata
_COUNT = "image_size_to_num_patches"  # a function of the model's code: tiles of an image
_PACK = "pack_image_features"  # a method: features of tiles to those of tokens


class TilesPart(ImagePart):
    """Pixels [tiles, channels, height, width] of one image to features."""

    kind = "tiles"

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        config = model.config
        vision = config.vision_config
        pixels = int(vision.image_size)
        self._channels = int(getattr(vision, "num_channels", 3))
        resolutions = [[int(n) for n in each] for each in config.image_grid_pinpoints]
        if any(size % pixels or size < pixels for each in resolutions for size in each):
            raise NotProven(
                f"expected image_grid_pinpoints of multiples of image_size {pixels}, got "
                f"{resolutions}"
            )
        # LLaVA-OneVision interpolates the features of large images.
        fewer = getattr(config, "vision_aspect_ratio", None)
        most = None if fewer is None else re.fullmatch(r"anyres_max_(\d+)", str(fewer))
        if fewer is not None and most is None:
            raise NotProven(f"expected vision_aspect_ratio anyres_max_N, got {fewer}")
        self._layout = TileLayout(
            resolutions,
            pixels,
            pixels // int(vision.patch_size),
            None if most is None else int(most[1]),
        )
        # An image whose features have padding, in the smallest number of tiles that is not one.
        least = min(resolutions, key=lambda size: (size[0] * size[1] <= pixels**2, sum(size)))
        self._size = (least[0] - pixels // 3, least[1])

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether features need sizes of images, which are cut into tiles."""
        taken = inspect.signature(own_features(model)).parameters
        own = hasattr(model.base_model, _PACK) and hasattr(model.base_model, "image_newline")
        return "image_sizes" in taken and hasattr(model.config, "image_grid_pinpoints") and own

    @property
    def input_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the graph inputs, in order."""
        names = ("pixel_values", "feature_places")
        return names if self._layout.most_tiles is None else (*names, "feature_weights")

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32 of pixel_values [tiles, channels, height, width].

        ``inputs``: also feature_places [F, N], the features of all tiles, and last the new line,
        that a token has, and their weights [F, N] of a model that interpolates.
        """
        pixel_values, places, *weights = inputs
        owner = self.model.base_model
        count = pixel_values.shape[0]
        functions = ReplacedFunctions()
        functions.add(sys.modules[type(owner).__module__], _COUNT, lambda **_: count)
        functions.add(owner, _PACK, lambda features, *_, **__: (features, None))
        with functions.replaced():
            (tiles,) = own_features(self.model)(
                pixel_values.to(self._dtype), image_sizes=[self._size]
            ).pooler_output
        rows = torch.cat([tiles.flatten(0, 1), owner.image_newline[None].to(tiles.dtype)])
        chosen = rows[places].float()
        return (chosen * weights[0][..., None]).sum(1) if weights else chosen.squeeze(1)

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images of one size as the model takes them."""
        pixel_values = torch.stack([pixels for pixels, *_ in images])
        sizes = torch.tensor([self._size] * len(images))
        return {"pixel_values": pixel_values, "image_sizes": sizes}

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        generator = torch.Generator().manual_seed(3)
        shape = (self._layout.tiles(self._size), self._channels, *[self._layout.pixels] * 2)
        found = map(torch.from_numpy, self._layout.places(self._size))
        given = (torch.randn(shape, generator=generator), *found)
        return given[: len(self.input_names)]

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of inputs and output, with names for dynamic sizes."""
        with torch.no_grad():
            features = self(*self.example())
        _, places, *weights = self.example()
        shape = ("features", places.shape[1])
        return {
            "pixel_values": ("tiles", self._channels, *[self._layout.pixels] * 2),
            "feature_places": shape,
            **({"feature_weights": shape} if weights else {}),
            "image_features": ("features", features.shape[1]),
        }

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the model."""
        return {**super().metadata(), LAYOUT: self._layout.text()}

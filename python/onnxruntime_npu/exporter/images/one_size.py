"""Images of one size, each with as many features, as in LLaVA, Gemma 3 and SmolVLM."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ..proof import NotProven
from .masked_pixels import MaskedPixelPart
from .part import ImagePart, features_in, own_features
from .patches import PatchPart
from .placed_patches import PlacedPatchPart
from .projected_patches import ProjectedPatchPart


class OneSizePart(ImagePart):
    """Pixels [1, channels, height, width] to features."""

    kind = "one_size"
    input_names = ("pixel_values",)

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.shape = pixels_of(model.config)
        # As in Idefics3 and SmolVLM: pixel_values [B, images, ..], where rows have several images.
        owner = model.base_model
        self.several = hasattr(owner, "vision_model") and hasattr(owner, "connector")

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether features need nothing but pixels."""
        taken = inspect.signature(own_features(model)).parameters.values()
        needed = [p.name for p in taken if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        # Their places of patches, or which pixels are padding, may have defaults.
        others = PatchPart, PlacedPatchPart, MaskedPixelPart, ProjectedPatchPart
        return needed == ["pixel_values"] and not any(each.takes(model) for each in others)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32 of pixel_values [1, channels, height, width]."""
        (pixel_values,) = inputs
        features: Any = self._features(pixel_values.to(self._dtype))
        if isinstance(features, (list, tuple)):  # of each image
            features = torch.cat(list(features))
        return features.flatten(0, -2).float()

    def _features(self, pixel_values: torch.Tensor) -> Any:
        if not self.several:
            return features_in(self.model, own_features(self.model)(pixel_values=pixel_values))
        # As its own method does, but without the search for images that are padding.
        owner = self.model.base_model
        return owner.connector(owner.vision_model(pixel_values=pixel_values).last_hidden_state)

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images as the model takes them."""
        pixel_values = torch.cat([pixels for (pixels,) in images])
        return {"pixel_values": pixel_values[None] if self.several else pixel_values}

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        return (torch.randn(self.shape, generator=torch.Generator().manual_seed(3)),)

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of input and output."""
        with torch.no_grad():
            features = self(*self.example())
        return {"pixel_values": self.shape, "image_features": tuple(features.shape)}


def pixels_of(config: Any) -> tuple[int, ...]:
    """Return the shape of pixel_values of one image."""
    vision = config.vision_config
    size = getattr(vision, "image_size", None)
    if size is None:
        raise NotProven("expected images of one size, image_size of the vision configuration")
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return 1, int(getattr(vision, "num_channels", 3)), int(height), int(width)

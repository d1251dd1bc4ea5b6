"""Images of any size, whose attention sees the whole image, as in Mistral 3 and LightOnOCR."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..proof import NotProven
from ..replaced_functions import ReplacedFunctions
from .part import ImagePart, own_features

UNIT = "pixels_of_feature"  # of the file's metadata: height and width are multiples of it
_UNITS = (2, 3)  # height and width to trace with: both numbers differ, and none is 1
_TOWERS = ("vision_tower", "vision_encoder")
_PROJECTORS = ("multi_modal_projector", "vision_projection")
_MASK = "generate_block_attention_mask"  # a function of the tower: keeps images apart


class AnySizePart(ImagePart):
    """Pixels [1, channels, height, width] of one image to features, row by row."""

    kind = "any_size"
    input_names = ("pixel_values",)

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        owner = model.base_model
        self._tower = _one_of(owner, _TOWERS)
        self._projector = _one_of(owner, _PROJECTORS)
        self._layers = getattr(model.config, "vision_feature_layer", None)
        config = model.config.vision_config
        self._channels = int(config.num_channels)
        self._unit = int(config.patch_size) * int(model.config.spatial_merge_size)
        self._functions = ReplacedFunctions()
        module = sys.modules[type(self._tower).__module__]
        if hasattr(module, _MASK):  # of one image, nothing is hidden
            self._functions.add(module, _MASK, lambda *_: None)

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether features need sizes of images, which are not cut into tiles."""
        taken = inspect.signature(own_features(model)).parameters
        return "image_sizes" in taken and not hasattr(model.config, "image_grid_pinpoints")

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32 of pixel_values [1, channels, height, width]."""
        (pixel_values,) = inputs
        sizes = [tuple(pixel_values.shape[2:])]
        with self._functions.replaced():
            found = self._tower(
                pixel_values.to(self._dtype), image_sizes=sizes, output_hidden_states=True
            )
        if self._layers is None:
            selected = found.last_hidden_state
        elif isinstance(self._layers, int):
            selected = found.hidden_states[self._layers]
        else:
            selected = torch.cat([found.hidden_states[layer] for layer in self._layers], -1)
        features: torch.Tensor = self._projector(selected.squeeze(0), sizes)
        return features.float()

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images of one size as the model takes them."""
        sizes = torch.tensor([pixels.shape[2:] for (pixels,) in images])
        return {"pixel_values": torch.cat([pixels for (pixels,) in images]), "image_sizes": sizes}

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        generator = torch.Generator().manual_seed(3)
        size = [count * self._unit for count in _UNITS]
        return (torch.randn(1, self._channels, *size, generator=generator),)

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of input and output, with names for dynamic sizes."""
        with torch.no_grad():
            features = self(*self.example())
        return {
            "pixel_values": (1, self._channels, "height", "width"),
            "image_features": ("features", features.shape[1]),
        }

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the model."""
        return {**super().metadata(), UNIT: str(self._unit)}


def _one_of(owner: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise NotProven(f"expected one of {', '.join(names)} in the model")

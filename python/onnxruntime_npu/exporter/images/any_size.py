"""Images of any size, whose attention sees the whole image, as in Mistral 3 and LightOnOCR."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch

from ..proof import NotProven
from ..replaced_functions import ReplacedFunctions
from .free_size import FreeSizePart
from .part import own_features

_TOWERS = ("vision_tower", "vision_encoder")
_PROJECTORS = ("multi_modal_projector", "vision_projection")
_MASK = "generate_block_attention_mask"  # a function of the tower: keeps images apart


class AnySizePart(FreeSizePart):
    """Pixels [1, channels, height, width] of one image to features, row by row."""

    kind = "any_size"
    unit_name = "pixels_of_feature"

    def __init__(self, model: Any) -> None:
        config = model.config.vision_config
        unit = int(config.patch_size) * int(model.config.spatial_merge_size)
        super().__init__(model, int(config.num_channels), unit)
        owner = model.base_model
        self._tower = _one_of(owner, _TOWERS)
        self._projector = _one_of(owner, _PROJECTORS)
        self._layers = getattr(model.config, "vision_feature_layer", None)
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

    def _feature_count(self, features: torch.Tensor) -> str:
        del features
        return "features"


def _one_of(owner: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if hasattr(owner, name):
            return getattr(owner, name)
    raise NotProven(f"expected one of {', '.join(names)} in the model")

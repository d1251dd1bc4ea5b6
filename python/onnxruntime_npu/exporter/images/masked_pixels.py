"""Images of any size that a processor pads, resampled to as many features each, as in Idefics 2.

The graph takes the pixels of one image without padding. Positions of patches are learned ones of a
square that images of all shapes are spread over.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ..replaced_functions import ReplacedFunctions
from .free_size import FreeSizePart
from .part import own_features

_PADDING = 1  # patches below and beside the proof's image, which the model has to hide


class MaskedPixelPart(FreeSizePart):
    """Pixels [1, channels, height, width] of one image to features."""

    kind = "masked_pixels"
    unit_name = "pixels_of_patch"

    def __init__(self, model: Any) -> None:
        owner = model.base_model
        embeddings = owner.vision_model.embeddings
        super().__init__(
            model, int(embeddings.patch_embedding.in_channels), int(embeddings.patch_size)
        )
        self._tower, self._connector = owner.vision_model, owner.connector
        self._side = int(embeddings.num_patches_per_side)
        # As the model computes them: rounding decides between neighbours.
        step = 1 / self._side
        self.register_buffer("_borders", torch.arange(step, 1.0, step), persistent=False)
        self._functions = ReplacedFunctions()
        self._functions.add(embeddings, "forward", self._embedded)

    _borders: torch.Tensor  # of learned positions, as shares of an image

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether features need to know which pixels are padding, also where they are resampled."""
        connector = getattr(model.base_model, "connector", None)
        taken = inspect.signature(own_features(model)).parameters
        return (
            {"pixel_values", "pixel_attention_mask"} <= set(taken)
            and connector is not None
            and "attention_mask" in inspect.signature(connector.forward).parameters
        )

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32 of pixel_values [1, channels, height, width]."""
        (pixel_values,) = inputs
        with self._functions.replaced():
            hidden = self._tower.embeddings(pixel_values.to(self._dtype))
        encoded = self._tower.encoder(inputs_embeds=hidden, attention_mask=None)
        hidden = self._tower.post_layernorm(encoded.last_hidden_state)
        shown = torch.ones_like(hidden[:, :, 0], dtype=torch.bool)
        features: torch.Tensor = self._connector(hidden, attention_mask=shown)
        return features[0].float()

    def _embedded(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of patches, [1, P, H]."""
        embeddings = self._tower.embeddings
        patches = embeddings.patch_embedding(pixel_values)
        rows, columns = (self._places(torch.arange(n)) for n in patches.shape[2:])
        places = rows[:, None] * self._side + columns
        learned = embeddings.position_embedding(places.flatten())
        return patches.flatten(2).transpose(1, 2) + learned

    def _places(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return the learned position of each of all patches of a side."""
        shares = numbers.float() * (1.0 / (numbers[-1:] + 1))
        return (shares.clamp(max=1.0 - 1e-6)[:, None] >= self._borders).sum(1)

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images of one size as the model takes them: those of one row, and padded."""
        pixels = torch.cat([pixels for (pixels,) in images])[None]
        padding = 0, _PADDING * self._unit, 0, _PADDING * self._unit
        shown = torch.ones_like(pixels[:, :, 0], dtype=torch.int64)
        return {
            "pixel_values": torch.nn.functional.pad(pixels, padding),
            "pixel_attention_mask": torch.nn.functional.pad(shown, padding),
        }

    def _feature_count(self, features: torch.Tensor) -> int:
        return features.shape[0]  # of an image of any size

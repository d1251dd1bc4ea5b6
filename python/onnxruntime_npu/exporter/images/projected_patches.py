"""Images of any size as patches that are projected to features one by one, as in Fuyu.

The processor puts tokens for the ends of rows between those of patches, so that no graph takes
where a patch is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .part import ImagePart

_PATCHES = 5  # to trace with
_PROJECTION = "vision_embed_tokens"  # a part of the model


class ProjectedPatchPart(ImagePart):
    """Patches [P, values] to a feature each."""

    kind = "projected_patches"
    input_names = ("pixel_values",)
    attends = False

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether the model projects patches, and has no other vision."""
        return isinstance(getattr(model.base_model, _PROJECTION, None), nn.Linear)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [P, H] in float32 of pixel_values [P, values]."""
        (patches,) = inputs
        features: torch.Tensor = self._projection(patches.to(self._dtype))
        return features.float()

    @property
    def _projection(self) -> Any:
        return getattr(self.model.base_model, _PROJECTION)

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images as the model takes them: all patches, one after the other."""
        return {"pixel_values": torch.cat([patches for (patches,) in images])}

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        generator = torch.Generator().manual_seed(3)
        return (torch.randn(_PATCHES, self._projection.in_features, generator=generator),)

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of input and output, with names for dynamic sizes."""
        return {
            "pixel_values": ("patches", int(self._projection.in_features)),
            "image_features": ("patches", int(self._projection.out_features)),
        }

"""Features of images that are given, where a model's own could not be exported."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ..proof import NotProven
from .part import ImagePart

_FEATURES = 3  # of the proof's image


class GivenFeatures(ImagePart):
    """No file: the caller has the features [F, H] of images."""

    kind = "given"
    input_names = ()

    def __init__(self, model: Any, obstacle: str) -> None:
        super().__init__(model)
        self.obstacle = obstacle
        taken = inspect.signature(model.get_decoder().forward).parameters
        if any("deepstack" in name for name in taken):
            raise NotProven(obstacle)  # layers of the text take more features
        # In time, rows and columns, where images are grids.
        self.axes = [3] if hasattr(model.base_model, "get_rope_index") else []

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether this is a model's kind, which is known when all others have failed."""
        return False

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the features themselves."""
        (features,) = inputs
        return features

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return nothing: there are no pixels."""
        return {}

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return features as large as embeddings."""
        weight = self.model.get_input_embeddings().weight
        generator = torch.Generator().manual_seed(3)
        found = torch.randn(_FEATURES, weight.shape[1], generator=generator)
        return (found * weight.float().std(),)

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the model."""
        size = self.dimensions()["image_features"][1]
        axes = self.axes[0] if self.axes else 0
        return {**super().metadata(), "feature_size": str(size), "position_axes": str(axes)}

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of the output."""
        return {"image_features": ("features", self.example()[0].shape[1])}

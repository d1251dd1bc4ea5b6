"""What parts share that take the pixels of one image of any size."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch

from .part import ImagePart

_UNITS = (2, 3)  # height and width to trace with: both numbers differ, and none is 1


class FreeSizePart(ImagePart):
    """Pixels [1, channels, height, width] of one image to features."""

    unit_name: ClassVar[str]  # of the file's metadata: height and width are multiples of it
    input_names = ("pixel_values",)

    def __init__(self, model: Any, channels: int, unit: int) -> None:
        super().__init__(model)
        self._channels, self._unit = channels, unit

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
            "image_features": (self._feature_count(features), features.shape[1]),
        }

    @abstractmethod
    def _feature_count(self, features: torch.Tensor) -> str | int:
        """Return the number of features of an image: that of the example's, or a name."""

    def metadata(self) -> dict[str, str]:
        """Return what a runner has to know of the model."""
        return {**super().metadata(), self.unit_name: str(self._unit)}

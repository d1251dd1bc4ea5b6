"""Images of one size that queries read for an instruction, as in InstructBLIP."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .one_size import pixels_of
from .part import ImagePart, features_in, own_features

_TOKENS = "qformer_input_ids"
_LENGTHS = (3, 5)  # of the proof's instructions


class InstructedPart(ImagePart):
    """Pixels [1, channels, height, width] and tokens of an instruction [1, L] to features."""

    kind = "instructed"
    input_names = ("pixel_values", _TOKENS)

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.shape = pixels_of(self.model.config)

    @staticmethod
    def takes(model: Any) -> bool:
        """Whether features need an instruction beside pixels."""
        taken = inspect.signature(own_features(model)).parameters.values()
        needed = [p.name for p in taken if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        return needed == ["pixel_values", _TOKENS]

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return features [F, H] in float32."""
        pixel_values, tokens = inputs
        found = own_features(self.model)(
            pixel_values=pixel_values.to(self._dtype), **{_TOKENS: tokens}
        )
        features: torch.Tensor = features_in(self.model, found)
        return features.flatten(0, -2).float()

    def as_given(self, images: Sequence[tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Return images with instructions that are padded on the right."""
        longest = max(tokens.shape[1] for _, tokens in images)
        padding = [longest - tokens.shape[1] for _, tokens in images]

        def rows(each: Sequence[torch.Tensor]) -> torch.Tensor:
            padded = zip(each, padding, strict=True)
            return torch.cat([nn.functional.pad(row, (0, count)) for row, count in padded])

        tokens = [tokens for _, tokens in images]
        return {
            "pixel_values": torch.cat([pixels for pixels, _ in images]),
            _TOKENS: rows(tokens),
            "qformer_attention_mask": rows([torch.ones_like(row) for row in tokens]),
        }

    def example(self) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with."""
        return self.examples()[0]

    def examples(self) -> list[tuple[torch.Tensor, ...]]:
        """Return two images with instructions of different lengths."""
        generator = torch.Generator().manual_seed(3)
        return [
            (torch.randn(self.shape, generator=generator), torch.arange(1, count + 1)[None])
            for count in _LENGTHS
        ]

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of inputs and output."""
        with torch.no_grad():
            features = self(*self.example())
        return {
            "pixel_values": self.shape,
            _TOKENS: (1, "instruction"),
            "image_features": tuple(features.shape),
        }

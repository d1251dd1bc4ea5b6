"""One tower of a model that embeds texts and images in one space, such as CLIP and SigLIP."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..errors import ArgumentError

TOWERS = ("text", "image")
_INPUTS = {"text": "input_ids", "image": "pixel_values"}
_CONFIGS = {"text": "text_config", "image": "vision_config"}


class Tower(nn.Module):
    """The text or the image tower with its projection, with the interface of an encoder."""

    def __init__(self, model: Any, kind: str) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.config = getattr(model.config, _CONFIGS[kind])
        self.main_input_name = _INPUTS[kind]

    @property
    def embedding_name(self) -> str:
        """The name of the output that both towers have in one space."""
        return f"{self.kind}_embeds"

    def forward(self, **inputs: torch.Tensor) -> Any:
        """Return last_hidden_state and, projected, pooler_output."""
        return getattr(self.model, f"get_{self.kind}_features")(**inputs)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of the text tower's tokens."""
        return self.model.text_model.get_input_embeddings()

    def set_attn_implementation(self, name: str) -> None:
        """Choose the attention of both towers."""
        self.model.set_attn_implementation(name)

    def metadata(self) -> dict[str, str]:
        """Return what turns similarities of the towers' vectors of length 1 into logits."""
        scale, bias = (getattr(self.model, n, None) for n in ("logit_scale", "logit_bias"))
        found = {}
        if isinstance(scale, torch.Tensor):
            found["logit_scale"] = repr(float(scale.detach().exp()))
        if isinstance(bias, torch.Tensor):
            found["logit_bias"] = repr(float(bias.detach()))
        return found


def tower_of(model: Any, kind: str | None) -> Any:
    """Return one tower of a model with two, or the model itself without ``kind``.

    Raises ArgumentError unless ``kind`` is given for such a model, and for no other.
    """
    both = all(hasattr(model, f"get_{each}_features") for each in TOWERS)
    if both and kind is None:
        raise ArgumentError(
            f"expected tower='text' or tower='image' for {type(model).__name__}, which has both"
        )
    if kind is not None and not both:
        raise ArgumentError(
            f"expected no tower for {type(model).__name__}, which has only one, got {kind!r}"
        )
    return model if kind is None else Tower(model, kind)

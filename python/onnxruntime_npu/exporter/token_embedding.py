"""How tokens are embedded, where that is more than a row of a matrix for each, as in Gemma 4.

Tokens that stand for images, videos and sound are embedded as padding, and layers of the text take
embeddings of tokens of their own (per-layer inputs), which follow from tokens alone.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

PER_LAYER = "per_layer_inputs"  # an argument of the model


class TokenEmbedding(nn.Module):
    """Tokens to embeddings, and behind them those of the layers of the text.

    Attributes:
        size: of the embedding of a token.
        of_layers: columns of the embeddings of all layers; 0 without them.
    """

    def __init__(self, model: Any) -> None:
        """Take a model of images and text."""
        super().__init__()
        self.embedding = model.get_input_embeddings()
        self.size = int(self.embedding.weight.shape[-1])
        self.placeholders = _placeholders(model)
        if self.placeholders:
            self._padding = torch.tensor(model.config.get_text_config().pad_token_id)
        taken = PER_LAYER in inspect.signature(model.forward).parameters
        layers = getattr(model.get_decoder(), "embed_tokens_per_layer", None) if taken else None
        self.layers: nn.Module | None = layers
        self.of_layers = 0 if layers is None else int(layers.weight.shape[-1])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return [B, S, size + of_layers] in float32 for input_ids [B, S]."""
        for token in self.placeholders:
            input_ids = torch.where(input_ids == token, self._padding, input_ids)
        embedded: torch.Tensor = self.embedding(input_ids).float()
        if self.layers is None:
            return embedded
        return torch.cat([embedded, self.layers(input_ids).float()], -1)


def per_layer_inputs(model: Any, embedded: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the argument for embeddings [B, S, of_layers] of the layers; none without columns."""
    if embedded.shape[-1] == 0:
        return {}
    layers = model.config.get_text_config().num_hidden_layers
    return {PER_LAYER: embedded.unflatten(-1, (layers, -1))}


def _placeholders(model: Any) -> list[int]:
    """Return the tokens that are embedded as padding: those of each kind, of which there are masks.

    In other models the method compares features or embeddings with the tokens, or returns a single
    mask.
    """
    find = getattr(model.base_model, "get_placeholder_mask", None)
    taken = {} if find is None else dict(inspect.signature(find).parameters)
    if find is None or [*taken] != ["input_ids", "inputs_embeds"]:
        return []
    embeds = taken["inputs_embeds"]
    if embeds.default is embeds.empty:
        return []
    tokens = torch.arange(model.get_input_embeddings().weight.shape[0])
    masks = find(input_ids=tokens)
    if not isinstance(masks, tuple):
        return []
    found: list[int] = torch.stack([*masks]).any(0).nonzero().flatten().tolist()
    return found

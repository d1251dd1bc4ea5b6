"""What the text of a model of images takes of a token: its embedding, and further columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from .token_embedding import per_layer_inputs

if TYPE_CHECKING:
    from .image_text_parts import EmbeddingPart


class Embeddings(NamedTuple):
    """The columns of a token: its embedding, features of the first layers, those of all layers."""

    embedded: int  # of the embedding, and of what each of the first layers adds
    of_layers: int  # of what layers take of tokens themselves
    size: int  # of all

    @staticmethod
    def of(part: EmbeddingPart) -> Embeddings:
        """Return those that a part makes."""
        return Embeddings(part.tokens.size, part.tokens.of_layers, part.size)

    @contextmanager
    def given(self, model: Any, embeds: torch.Tensor) -> Iterator[dict[str, Any]]:
        """Yield the arguments of a model for embeds [B, S, size]; inside its layers take theirs."""
        embeds = embeds.to(model.get_input_embeddings().weight.dtype)
        embeds, of_layers = embeds.split([self.size - self.of_layers, self.of_layers], -1)
        embeds, *stacked = embeds.split(self.embedded, -1)
        with _given_features(model.get_decoder(), stacked):
            yield {"inputs_embeds": embeds, **per_layer_inputs(model, of_layers)}


@contextmanager
def _given_features(language: Any, stacked: Sequence[torch.Tensor]) -> Iterator[None]:
    """Let the first layers of a language model add features [B, S, H], which are 0 for text."""

    def before(
        _: nn.Module, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, {**options, "deepstack_visual_embeds": list(stacked)}

    if not stacked:
        yield
        return
    hook = language.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()

"""A transformers model that is exported as it is, with some of its parts replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from .module_replacement import convert_weights
from .proof import NotProven
from .replaced_functions import ReplacedFunctions


class KeptModel(nn.Module):
    """What a decoder that is the model itself has besides its forward pass."""

    def __init__(self, model: Any, functions: ReplacedFunctions) -> None:
        super().__init__()
        self.model = model
        self.functions = functions  # that the model calls in the place of its own

    @property
    def head_weight(self) -> torch.Tensor | None:
        """The weight of the head."""
        return self.model.get_output_embeddings().weight

    @property
    def vocabulary(self) -> int:
        """V, the number of tokens that are scored."""
        return self.model.get_output_embeddings().out_features

    def replace_head(self, replace: Callable[[nn.Linear], nn.Module]) -> None:
        """Score by what ``replace`` returns for the head, in place; the embedding stays."""
        self.model.set_output_embeddings(replace(self.model.get_output_embeddings()))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations and caches."""
        return self.model.get_input_embeddings().weight.dtype

    def convert(self, dtype: torch.dtype) -> None:
        """Convert the weights but those that the model keeps in float32; buffers stay, too."""
        convert_weights(self.model, dtype)

    @contextmanager
    def scoring(self, scored: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
        """Let the model run inside with its functions, and its head score what ``scored`` takes."""
        calls = []

        def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            calls.append(args)
            return scored(args[0]), *args[1:]

        hook = self.model.get_output_embeddings().register_forward_pre_hook(before)
        try:
            with self.functions.replaced():
                yield
        finally:
            hook.remove()
        if len(calls) != 1:
            raise NotProven(f"expected one call of the head, got {len(calls)}")

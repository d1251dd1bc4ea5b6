"""The model's inputs and outputs for a kind of cache, as a module that torch.export can trace.

Tensor names are those that onnxruntime-genai expects; dimension names are written into the file for
readers and for memory planning. Shape symbols are those of the roles package.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# Sizes to trace with: all different, and not 0 or 1, which torch would treat as constants.
BATCH, PAST, NEW, CAPACITY = 2, 3, 5, 11


class Interface(nn.Module):
    """A decoder with the inputs and outputs of one kind of cache."""

    cache: str
    leading_inputs: tuple[str, ...]
    cache_dimension: str  # the token axis of past_key_values.*
    present_dimension: str  # the token axis of present.*

    def __init__(self, decoder: Any, logits: str) -> None:
        super().__init__()
        self.decoder = decoder  # Decoder or OriginalDecoder
        self.last_only = logits == "last"

    @property
    def layer_count(self) -> int:
        """Number of decoder layers."""
        return len(self.decoder.cache_sizes)

    def _cache_names(self, prefix: str) -> list[str]:
        return [
            f"{prefix}.{i}.{kind}" for i in range(self.layer_count) for kind in ("key", "value")
        ]

    @property
    def input_names(self) -> list[str]:
        """Names of the graph inputs, in order."""
        return [*self.leading_inputs, *self._cache_names("past_key_values")]

    @property
    def output_names(self) -> list[str]:
        """Names of the graph outputs, in order."""
        return ["logits", *self._cache_names("present")]

    def empty_caches(self, batch: int, length: int) -> list[torch.Tensor]:
        """Return zeroed keys and values of every layer, [batch, Nkv, length, D]."""
        dtype = self.decoder.dtype
        return [
            torch.zeros((batch, sizes.heads, length, size), dtype=dtype)
            for sizes in self.decoder.cache_sizes
            for size in (sizes.key, sizes.value)
        ]

    def example(self) -> tuple[Any, ...]:
        """Return arguments to trace with."""
        raise NotImplementedError

    def prompt(self, input_ids: torch.Tensor) -> tuple[Any, ...]:
        """Return the arguments for input_ids [1, S] without a past."""
        raise NotImplementedError

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        raise NotImplementedError

    def _cache_shapes(self) -> dict[str, tuple[str | int, ...]]:
        shapes: dict[str, tuple[str | int, ...]] = {}
        for i, sizes in enumerate(self.decoder.cache_sizes):
            for kind, size in (("key", sizes.key), ("value", sizes.value)):
                for prefix, tokens in (
                    ("past_key_values", self.cache_dimension),
                    ("present", self.present_dimension),
                ):
                    shapes[f"{prefix}.{i}.{kind}"] = ("batch", sizes.heads, tokens, size)
        scored = 1 if self.last_only else "sequence"
        return {**shapes, "logits": ("batch", scored, self.decoder.vocabulary)}

    def _outputs(
        self, logits: torch.Tensor, present: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, ...]:
        return (logits, *(tensor for layer in present for tensor in layer))

    def _all_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Score every token: hidden [B, S, H] to [B, S, V]."""
        return self.decoder.logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])


def pairs(flat: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return keys and values of each layer, which the inputs list one after the other."""
    return list(zip(flat[0::2], flat[1::2], strict=True))

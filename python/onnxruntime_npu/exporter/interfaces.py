"""The model's inputs and outputs for each kind of cache, as a module that torch.export can trace.

Tensor names are those that onnxruntime-genai expects; dimension names are written into the file for
readers and for memory planning. Shape symbols are those of the roles package.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .caches import DynamicStep, StaticStep, compressed_causal_mask

CACHES = ("dynamic", "static")
LOGITS = ("last", "all")

# Sizes to trace with: all different, and not 0 or 1, which torch would treat as constants.
_BATCH, _PAST, _NEW, _CAPACITY = 2, 3, 5, 11


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


def _pairs(flat: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(flat[0::2], flat[1::2], strict=True))


class DynamicInterface(Interface):
    """The cache grows by concatenation; the interface of onnxruntime-genai's decoder models."""

    cache = "dynamic"
    leading_inputs = ("input_ids", "attention_mask", "position_ids")
    cache_dimension = "past"
    present_dimension = "total"

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Decode input_ids [B, S] after past [B, Nkv, T - S, D], under attention_mask [B, T]."""
        batch, sequence = input_ids.shape
        cos, sin = self.decoder.tables(position_ids.view(batch, 1, sequence, 1))
        step = DynamicStep(cos, sin, attention_mask, sequence)
        hidden, present = self.decoder(input_ids, step, _pairs(past))
        if self.last_only:
            return self._outputs(self.decoder.logits(hidden[:, -1])[:, None], present)
        return self._outputs(self._all_logits(hidden), present)

    def example(self) -> tuple[Any, ...]:
        """Return arguments to trace with."""
        total = _PAST + _NEW
        input_ids = torch.zeros(_BATCH, _NEW, dtype=torch.int64)
        attention_mask = torch.ones(_BATCH, total, dtype=torch.int64)
        position_ids = torch.arange(_PAST, total)[None].repeat(_BATCH, 1)
        return input_ids, attention_mask, position_ids, self.empty_caches(_BATCH, _PAST)

    def prompt(self, input_ids: torch.Tensor) -> tuple[Any, ...]:
        """Return the arguments for input_ids [1, S] without a past."""
        positions = torch.arange(input_ids.shape[1])[None]
        return input_ids, torch.ones_like(input_ids), positions, self.empty_caches(1, 0)

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        return {
            "input_ids": ("batch", "sequence"),
            "attention_mask": ("batch", "total"),
            "position_ids": ("batch", "sequence"),
            **self._cache_shapes(),
        }


class OriginalInterface(DynamicInterface):
    """The same for a decoder that is transformers' own forward pass (original.py)."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Decode input_ids [B, S] after past [B, Nkv, T - S, D], under attention_mask [B, T]."""
        given = (input_ids, attention_mask, position_ids, _pairs(past))
        return self._outputs(*self.decoder(*given, last_only=self.last_only))


class StaticInterface(Interface):
    """The cache is a preallocated buffer, bound as input and as output of the same step.

    Prompts are padded on the right. Row b takes the first ``sequence_lengths[b]`` of input_ids[b],
    after which its cache holds ``total_lengths[b]`` tokens. A step writes S slots of every row, so
    it needs total_lengths - sequence_lengths + S <= capacity.
    """

    cache = "static"
    leading_inputs = ("input_ids", "sequence_lengths", "total_lengths")
    cache_dimension = "capacity"
    present_dimension = "capacity"
    causal_mask: torch.Tensor

    def __init__(self, decoder: Any, logits: str) -> None:
        super().__init__(decoder, logits)
        self.register_buffer("causal_mask", compressed_causal_mask())

    def forward(
        self,
        input_ids: torch.Tensor,
        sequence_lengths: torch.Tensor,
        total_lengths: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Decode input_ids [B, S] into caches [B, Nkv, C, D]."""
        sequence = input_ids.shape[1]
        first = (total_lengths - sequence_lengths).view(-1, 1, 1, 1)
        positions = first + torch.arange(sequence)[:, None]
        cos, sin = self.decoder.tables(positions)
        step = StaticStep(
            cos,
            sin,
            positions,
            sequence_lengths,
            total_lengths,
            self.decoder.cache_sizes[0].heads,
            self.causal_mask,
        )
        hidden, present = self.decoder(input_ids, step, _pairs(past))
        if self.last_only:
            # Not row indices times `sequence`: a size is a host value, which every run would copy.
            last = (sequence_lengths - 1).view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
            last_hidden = hidden.gather(1, last).flatten(0, 1)
            return self._outputs(self.decoder.logits(last_hidden)[:, None], present)
        return self._outputs(self._all_logits(hidden), present)

    def example(self) -> tuple[Any, ...]:
        """Return arguments to trace with."""
        input_ids = torch.zeros(_BATCH, _NEW, dtype=torch.int64)
        sequence_lengths = torch.tensor([_NEW, _NEW - 1])
        total_lengths = torch.tensor([_PAST + _NEW, _PAST + _NEW])
        return input_ids, sequence_lengths, total_lengths, self.empty_caches(_BATCH, _CAPACITY)

    def prompt(self, input_ids: torch.Tensor) -> tuple[Any, ...]:
        """Return the arguments for input_ids [1, S] without a past."""
        length = torch.tensor([input_ids.shape[1]])
        return input_ids, length, length, self.empty_caches(1, input_ids.shape[1])

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        return {
            "input_ids": ("batch", "sequence"),
            "sequence_lengths": ("batch",),
            "total_lengths": ("batch",),
            **self._cache_shapes(),
        }


INTERFACES = {"dynamic": DynamicInterface, "static": StaticInterface}

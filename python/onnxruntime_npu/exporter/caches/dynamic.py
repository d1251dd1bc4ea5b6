"""A cache that grows by concatenation; the interface of onnxruntime-genai's decoder models."""

from __future__ import annotations

from typing import Any

import torch

from .interface import BATCH, NEW, PAST, Interface
from .step import Step, Visibility


class DynamicStep(Step):
    """A cache that grows: past [B, Nkv, T - S, D] in, past and new [B, Nkv, T, D] out.

    ``attention_mask`` [B, T] applies to each token, so padding may be on either side. A padding
    token may have no visible key: attention then yields zeros.
    """

    def __init__(self, attention_mask: torch.Tensor, sequence: int) -> None:
        super().__init__()
        self.attention_mask = attention_mask
        self._sequence = sequence
        self._masks: dict[int | None, torch.Tensor] = {}
        self._numbers: torch.Tensor | None = None

    def _write(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.cat([past, new], dim=2)

    def numbers(self, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how many tokens are before each; padding has the number of the token before it."""
        if self._numbers is None:
            self._numbers = self.attention_mask.cumsum(1) - 1
        return self._numbers, self._numbers[:, -1:]

    def mask(self, window: int | None) -> torch.Tensor:
        """Return the mask of keys hidden from each new token, [B, 1, S, T] bool.

        A window is of tokens: padding among them, as of shorter rows in a batch whose prompts were
        padded on the right, does not count.
        """
        if window not in self._masks:
            padding = (self.attention_mask == 0)[:, None, None, :]
            total = self.attention_mask.shape[1]
            key = torch.arange(total)
            query = torch.arange(total - self._sequence, total)[:, None]
            hidden = (key > query) | padding
            if window is not None:
                numbers, _ = self.numbers(total)
                new = numbers[:, None, total - self._sequence :, None]
                hidden = hidden | (numbers[:, None, None, :] <= new - window)
            self._masks[window] = hidden
        return self._masks[window]

    def visibility(self, capacity: int, window: int | None) -> Visibility:
        """Return the mask of the step."""
        return Visibility(self.mask(window), sparse_mode=1)


class DynamicInterface(Interface):
    """The cache grows by concatenation; the interface of onnxruntime-genai's decoder models."""

    cache = "dynamic"
    leading_inputs = ("input_ids", "attention_mask", "position_ids")

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        """Decode input_ids [B, S] after past [B, Nkv, T - S, D], under attention_mask [B, T].

        States follow the keys and values. They take in padding of a later step as they take in
        zeros: such a row is padded before its first token only.
        """
        batch, sequence = input_ids.shape
        positions = position_ids.view(batch, 1, sequence, 1)
        step = DynamicStep(attention_mask, sequence)
        step.states = self._states(past)

        def scored(hidden: torch.Tensor) -> torch.Tensor:
            return hidden[:, -1] if self.last_only else hidden.flatten(0, 1)

        lengths = positions.amax(2, keepdim=True) + 1
        logits, present = self.decoder.decode(
            input_ids, positions, lengths, step, self._layers(past), scored
        )
        return self._outputs(logits, present, batch, sequence, step.states)

    def example(self) -> tuple[Any, ...]:
        """Return arguments to trace with."""
        total = PAST + NEW
        input_ids = torch.zeros(BATCH, NEW, dtype=torch.int64)
        attention_mask = torch.ones(BATCH, total, dtype=torch.int64)
        position_ids = torch.arange(PAST, total)[None].repeat(BATCH, 1)
        return input_ids, attention_mask, position_ids, self.empty_caches(BATCH, PAST)

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
            **self._cache_shapes("past_key_values", "batch", "past"),
            **self._cache_shapes("present", "batch", "total"),
            **self._state_shapes("past_key_values", "batch"),
            **self._state_shapes("present", "batch"),
            **self._logits_shape(),
        }

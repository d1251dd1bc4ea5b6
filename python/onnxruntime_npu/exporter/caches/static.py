"""A preallocated cache that is written in place, for graphs that are captured and replayed."""

from __future__ import annotations

from typing import Any

import torch

from .interface import BATCH, CAPACITY, NEW, PAST, Interface
from .sequences import PaddedSequences
from .step import Step, Visibility


class StaticStep(Step):
    """A preallocated cache [B, Nkv, C, D], updated in place; rows may have different lengths.

    Row b receives ``sequence_lengths[b]`` of the S new tokens, the rest being padding on the
    right, and then holds ``total_lengths[b]`` tokens. No S×C mask is materialised:
    attention gets the two lengths of each row.
    """

    def __init__(
        self,
        positions: torch.Tensor,
        sequence_lengths: torch.Tensor,
        total_lengths: torch.Tensor,
        causal_mask: torch.Tensor,
    ) -> None:
        super().__init__()
        self.positions = positions  # [B, 1, S, 1]
        self._query_lengths = sequence_lengths
        self._kv_lengths = total_lengths
        self._causal_mask = causal_mask
        self._indices: dict[int, torch.Tensor] = {}
        self._masks: dict[int, torch.Tensor] = {}

    def _slots(self, heads: int) -> torch.Tensor:
        """Return the index tuple (row, head, position) of every new vector, [B, heads, S, 3]."""
        if heads not in self._indices:
            # Sums of one-column tables broadcast; stacking would need expanded copies.
            row = torch.arange(self.positions.shape[0]).view(-1, 1, 1, 1)
            head = torch.arange(heads)[:, None, None]
            self._indices[heads] = (
                self.positions * torch.tensor([0, 0, 1])
                + row * torch.tensor([1, 0, 0])
                + head * torch.tensor([0, 1, 0])
            )
        return self._indices[heads]

    def _write(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.ops.npu.npu_scatter_nd_update(past, self._slots(new.shape[1]), new)

    def numbers(self, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return those of slots, which rows fill from the first one on."""
        return torch.arange(capacity)[None], self._kv_lengths[:, None] - 1

    def window_mask(self, capacity: int, window: int) -> torch.Tensor:
        """Return the mask of slots hidden from each new token, [B, 1, S, C] bool."""
        if window not in self._masks:
            slot = torch.arange(capacity)
            after = slot > self.positions
            self._masks[window] = after | (slot <= self.positions - window)
        return self._masks[window]

    def visibility(self, capacity: int, window: int | None) -> Visibility:
        """Return a causal mask, aligned to the right end of each row's tokens."""
        if window is None:
            mask, sparse_mode = self._causal_mask, 3
        else:
            # The band mode would suffice, but a single query token ignores sparse modes.
            mask, sparse_mode = self.window_mask(capacity, window), 1
        return Visibility(mask, sparse_mode, self._query_lengths, self._kv_lengths)


class StaticInterface(Interface):
    """The cache is a preallocated buffer, bound as input and as output of the same step.

    Prompts are padded on the right. Row b takes the first ``sequence_lengths[b]`` of input_ids[b],
    after which its cache holds ``total_lengths[b]`` tokens. A step writes S slots of every row, so
    it needs total_lengths - sequence_lengths + S <= capacity.
    """

    cache = "static"
    leading_inputs = ("input_ids", "sequence_lengths", "total_lengths")
    takes_lengths = True

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
        step = StaticStep(positions, sequence_lengths, total_lengths, self.causal_mask)
        step.states = self._states(past)
        step.sequences = PaddedSequences(sequence_lengths, sequence)

        def scored(hidden: torch.Tensor) -> torch.Tensor:
            if not self.last_only:
                return hidden.flatten(0, 1)
            # Not row indices times `sequence`: a size is a host value, which every run would copy.
            last = (sequence_lengths - 1).view(-1, 1, 1).expand(-1, 1, hidden.shape[-1])
            return hidden.gather(1, last).flatten(0, 1)

        lengths = total_lengths.view(-1, 1, 1, 1)
        logits, present = self.decoder.decode(
            input_ids, positions, lengths, step, self._layers(past), scored
        )
        return self._outputs(logits, present, input_ids.shape[0], sequence, step.states)

    def example(self) -> tuple[Any, ...]:
        """Return arguments to trace with."""
        input_ids = torch.zeros(BATCH, NEW, dtype=torch.int64)
        sequence_lengths = torch.tensor([NEW, NEW - 1])
        total_lengths = torch.tensor([PAST + NEW, PAST + NEW])
        return input_ids, sequence_lengths, total_lengths, self.empty_caches(BATCH, CAPACITY)

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
            **self._cache_shapes("past_key_values", "batch", "capacity"),
            **self._cache_shapes("present", "batch", "capacity"),
            **self._state_shapes("past_key_values", "batch"),
            **self._state_shapes("present", "batch"),
            **self._logits_shape(),
        }

"""Access of a decoding step to its key/value cache, for each kind of cache.

A step is created once per forward pass and shared by all layers, so that masks, rotary tables and
scatter indices are computed once. Shapes: B batch, S new tokens, T past and new tokens, C capacity
of a static cache, Nkv key/value heads, D head size.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import torch

from . import traced_ops


def compressed_causal_mask() -> torch.Tensor:
    """Return the fixed mask that sparse modes 2..4 require, independent of the sequence lengths."""
    return torch.ones(2048, 2048, dtype=torch.bool).triu(1)


class CacheSizes(NamedTuple):
    """Of one layer: the number of key/value heads, and the sizes of a key and a value."""

    heads: int
    key: int
    value: int


class Visibility(NamedTuple):
    """The arguments of fused attention that select the visible keys of a query token."""

    mask: torch.Tensor
    sparse_mode: int
    query_lengths: torch.Tensor | None = None
    kv_lengths: torch.Tensor | None = None


class Step(abc.ABC):
    """State of one forward pass that all layers share."""

    def __init__(self, cos: Any, sin: Any) -> None:
        self.cos = cos  # [B, 1, S, D], or None without positions
        self.sin = sin

    @abc.abstractmethod
    def update(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Add new [B, Nkv, S, D] to the cache; return the updated cache for attention."""

    @abc.abstractmethod
    def visibility(self, capacity: int, window: int | None) -> Visibility:
        """Return the visible keys of ``capacity`` for a query token, at most ``window`` back."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        num_heads: int,
        num_key_value_heads: int,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """Attend from query [B, Nq, S, D] over key and value; return [B, S, Nq, D]."""
        seen = self.visibility(key.shape[2], window)
        return traced_ops.fused_infer_attention(
            query,
            key,
            value,
            seen.mask,
            seen.query_lengths,
            seen.kv_lengths,
            num_heads=num_heads,
            num_key_value_heads=num_key_value_heads,
            scale=scale,
            sparse_mode=seen.sparse_mode,
        )


class DynamicStep(Step):
    """A cache that grows: past [B, Nkv, T - S, D] in, past and new [B, Nkv, T, D] out.

    ``attention_mask`` [B, T] applies to each token, so padding may be on either side. A padding
    token may have no visible key: attention then yields zeros.
    """

    def __init__(self, cos: Any, sin: Any, attention_mask: torch.Tensor, sequence: int) -> None:
        super().__init__(cos, sin)
        self._attention_mask = attention_mask
        self._sequence = sequence
        self._masks: dict[int | None, torch.Tensor] = {}

    def update(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Concatenate along the token axis."""
        return torch.cat([past, new], dim=2)

    def mask(self, window: int | None) -> torch.Tensor:
        """Return the mask of keys hidden from each new token, [B, 1, S, T] bool."""
        if window not in self._masks:
            padding = (self._attention_mask == 0)[:, None, None, :]
            total = self._attention_mask.shape[1]
            key = torch.arange(total)
            query = torch.arange(total - self._sequence, total)[:, None]
            hidden = key > query
            if window is not None:
                hidden = hidden | (key <= query - window)
            self._masks[window] = hidden | padding
        return self._masks[window]

    def visibility(self, capacity: int, window: int | None) -> Visibility:
        """Return the mask of the step."""
        return Visibility(self.mask(window), sparse_mode=1)


class StaticStep(Step):
    """A preallocated cache [B, Nkv, C, D], updated in place; rows may have different lengths.

    Row b receives ``sequence_lengths[b]`` of the S new tokens, the rest being padding on the
    right, and then holds ``total_lengths[b]`` tokens. No S×C mask is materialised:
    attention gets the two lengths of each row.
    """

    def __init__(
        self,
        cos: Any,
        sin: Any,
        positions: torch.Tensor,
        sequence_lengths: torch.Tensor,
        total_lengths: torch.Tensor,
        kv_heads: int,
        causal_mask: torch.Tensor,
    ) -> None:
        super().__init__(cos, sin)
        self._positions = positions  # [B, 1, S, 1]
        self._query_lengths = sequence_lengths
        self._kv_lengths = total_lengths
        self._causal_mask = causal_mask
        self._kv_heads = kv_heads
        self._indices: torch.Tensor | None = None
        self._masks: dict[int, torch.Tensor] = {}

    def _slots(self) -> torch.Tensor:
        """Return the index tuple (row, head, position) of every new vector, [B, Nkv, S, 3]."""
        if self._indices is None:
            # Sums of one-column tables broadcast; stacking would need expanded copies.
            row = torch.arange(self._positions.shape[0]).view(-1, 1, 1, 1)
            head = torch.arange(self._kv_heads)[:, None, None]
            self._indices = (
                self._positions * torch.tensor([0, 0, 1])
                + row * torch.tensor([1, 0, 0])
                + head * torch.tensor([0, 1, 0])
            )
        return self._indices

    def update(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Write the new vectors at their positions."""
        return torch.ops.npu.npu_scatter_nd_update(past, self._slots(), new)

    def window_mask(self, capacity: int, window: int) -> torch.Tensor:
        """Return the mask of slots hidden from each new token, [B, 1, S, C] bool."""
        if window not in self._masks:
            slot = torch.arange(capacity)
            after = slot > self._positions
            self._masks[window] = after | (slot <= self._positions - window)
        return self._masks[window]

    def visibility(self, capacity: int, window: int | None) -> Visibility:
        """Return a causal mask, aligned to the right end of each row's tokens."""
        if window is None:
            mask, sparse_mode = self._causal_mask, 3
        else:
            # The band mode would suffice, but a single query token ignores sparse modes.
            mask, sparse_mode = self.window_mask(capacity, window), 1
        return Visibility(mask, sparse_mode, self._query_lengths, self._kv_lengths)

"""Access of a decoding step to its key/value cache, for each kind of cache.

A step is created once per forward pass and shared by all layers, so that masks, rotary tables and
scatter indices are computed once. Shapes: B batch, S new tokens, T past and new tokens, C capacity
of a static cache, Nkv key/value heads, D head size.
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import torch

from .. import traced_ops


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

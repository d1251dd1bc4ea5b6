"""Attention of patches within windows of an image, as in most layers of Qwen2.5-VL's vision.

A window is a square of patches, cut where the image ends. The host says which patches are in each;
attention then has a batch of windows, in which places beyond the image are hidden.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ..attention_interface import ATTENTION
from .one_length import OneLength


class Windows(OneLength):
    """In the place of cumulative lengths of windows; from windows [W, L] of the P patches.

    Entries are patches, or P where a window reaches beyond the image.
    """

    def __init__(self, windows: torch.Tensor, patches: Any) -> None:
        super().__init__(patches)
        self._windows = windows
        count, places = windows.shape
        inside = windows < patches
        self.shown = inside[:, None, None, :].expand(count, 1, places, places)
        found = torch.zeros(patches + 1, dtype=torch.int64)
        numbers = torch.arange(count * places)
        self._places = found.scatter(0, windows.flatten(), numbers)[:-1]

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return [W, N, L, D] of x [P, N, D], with zeros beyond the image."""
        return torch.cat([x, torch.zeros_like(x[:1])])[self._windows].transpose(1, 2)

    def spread(self, attended: torch.Tensor) -> torch.Tensor:
        """Return [P, N * D] of attended [W, L, N, D]."""
        return attended.flatten(2).flatten(0, 1)[self._places]


class WindowAttention(nn.Module):
    """A layer's attention: within windows if it is given ``Windows``, else the model's own."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self.own = own

    def forward(
        self, hidden_states: torch.Tensor, cu_seqlens: Any, position_embeddings: Any, **options: Any
    ) -> torch.Tensor:
        """Return [P, H] of hidden_states [P, H]."""
        own = self.own
        if not isinstance(cu_seqlens, Windows):
            whole: torch.Tensor = own(
                hidden_states, cu_seqlens, position_embeddings=position_embeddings, **options
            )
            return whole
        from transformers import AttentionInterface

        rotate = sys.modules[type(own).__module__].apply_rotary_pos_emb_vision
        query, key, value = self._projected(hidden_states)
        query, key = rotate(query, key, *position_embeddings)
        fused = own.config._attn_implementation == ATTENTION
        attended, _ = AttentionInterface()[ATTENTION if fused else "sdpa"](
            own,
            *map(cu_seqlens.gather, (query, key, value)),
            attention_mask=cu_seqlens.shown,
            scaling=own.scaling,
            is_causal=False,
        )
        spread: torch.Tensor = own.proj(cu_seqlens.spread(attended))
        return spread

    def _projected(self, hidden_states: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return queries, keys and values [P, N, D], of one layer or, as in Qwen2.5-Omni, three."""
        own = self.own
        size = own.proj.in_features // own.num_heads
        if hasattr(own, "q"):
            layers = own.q, own.k, own.v
            return [layer(hidden_states).unflatten(-1, (-1, size)) for layer in layers]
        projected = own.qkv(hidden_states).unflatten(-1, (-1, size))
        cached = (projected.shape[1] - own.num_heads) // 2  # heads of keys, and of values
        return projected.split([own.num_heads, cached, cached], 1)

"""The role of FSMT's attention, whose axis of tokens comes first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..attention_interface import attend_with_sinks
from ..proof import Findings, compare, spread_to
from .probes import BATCH, NEW
from .role import Role

_NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")
_SPREADS = (1.0, 3.0)  # of queries: some differences between scores are small, some large


class TimeFirstAttention(nn.Module):
    """Attention over own tokens, which is causal where they are cached, or over the source."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.q_proj: nn.Module = original.q_proj
        self.k_proj: nn.Module = original.k_proj
        self.v_proj: nn.Module = original.v_proj
        self.out_proj: nn.Module = original.out_proj
        self.heads = int(original.num_heads)
        self.layer_idx = original.layer_idx
        self.encoder_decoder_attention = bool(original.encoder_decoder_attention)
        self.cache_key = original.cache_key  # the layers of the model read it

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        layer_state: Any = None,
        attn_mask: torch.Tensor | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, None]:
        """Transform query [S, B, H], over key [T, B, H] if it is a source, or its own tokens.

        key_padding_mask: [B, T], True for padding. layer_state: the cache of encoder and decoder.
        attn_mask: [S, T], 0 for visible keys, to be added.
        """
        queries = self._heads(self.q_proj(query))
        keys, values = self._keys(key if self.encoder_decoder_attention else query, layer_state)
        new, total = queries.shape[2], keys.shape[2]
        visible = torch.ones(1, 1, new, total, dtype=torch.bool)
        if layer_state is not None and not self.encoder_decoder_attention:
            visible = visible & (torch.arange(total) <= torch.arange(total - new, total)[:, None])
        if attn_mask is not None:
            visible = visible & (attn_mask == 0)
        if key_padding_mask is not None:
            visible = visible & ~key_padding_mask[:, None, None]
        visible = visible.expand(queries.shape[0], -1, -1, -1)
        scale = queries.shape[-1] ** -0.5
        attended = attend_with_sinks(queries, keys, values, scale, visible, None)
        return self.out_proj(attended.flatten(2).transpose(0, 1)), None

    def _keys(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, torch.Tensor]:
        across = self.encoder_decoder_attention
        cache = None
        if state is not None:
            cache = state.cross_attention_cache if across else state.self_attention_cache
            if across and state.is_updated.get(self.layer_idx):
                return cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
        keys, values = self._heads(self.k_proj(x)), self._heads(self.v_proj(x))
        if cache is not None:
            keys, values = cache.update(keys, values, self.layer_idx)
        if across and state is not None:
            state.is_updated[self.layer_idx] = True
        return keys, values

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, heads, S, D] of [S, B, H]."""
        return x.unflatten(-1, (self.heads, -1)).permute(1, 2, 0, 3)


def is_time_first_attention(module: Any) -> bool:
    """Whether a module has four projections, and the key of a cache that FSMT's have."""
    layers = (getattr(module, name, None) for name in _NAMES)
    return (
        hasattr(module, "cache_key")
        and not isinstance(module, TimeFirstAttention)
        and all(isinstance(layer, nn.Linear) for layer in layers)
    )


class TimeFirstAttentionRole(Role[nn.Module, TimeFirstAttention]):
    """Attention with tokens on the first axis."""

    def match(self, original: nn.Module) -> nn.Module:
        """Take the whole module."""
        return original

    def build(self, parts: nn.Module) -> Iterator[TimeFirstAttention]:
        """Yield the fused form."""
        yield TimeFirstAttention(parts)

    def prove(self, original: Any, built: TimeFirstAttention) -> float:
        """Compare with padding, and with a causal mask."""
        x = torch.randn(NEW, BATCH, original.q_proj.in_features)
        padding = torch.zeros(BATCH, NEW, dtype=torch.bool)
        padding[-1, -1] = True
        later = torch.full((NEW, NEW), torch.finfo(torch.float32).min).triu(1)
        worst = 0.0
        for spread in _SPREADS:
            given = spread_to(x, original.q_proj(x), spread)
            for mask in (None, later):
                masks = {"key_padding_mask": padding, "attn_mask": mask}
                expected, _ = original(given, given, **masks)
                worst = max(worst, compare(expected, built(given, given, **masks)[0], "attention"))
        return worst

    def report(
        self, findings: Findings, site: str, built: TimeFirstAttention, difference: float
    ) -> None:
        """Record the node."""
        findings.replaced("npu_fusion_attention", difference)

"""The role of Longformer's attention, whose tokens see a window around them, and global tokens.

The original computes chunks of the window's size, of texts that are padded to a multiple of it.
Here a mask hides what is outside of the window, of texts of any length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..attention_interface import attend_with_sinks
from ..proof import Findings, compare, spread_to
from .probes import BATCH
from .role import Role

_WINDOW = 2  # to each side, in proofs
_LENGTH = 6 * _WINDOW  # a multiple of what the original divides texts into
_FAR = 10000.0  # of masks: negative for padding, positive for global tokens
_NAMES = ("query", "key", "value", "query_global", "key_global", "value_global")
_PADDED = "_pad_to_window_size"
_SPREADS = (1.0, 3.0)  # of queries: some differences between scores are small, some large


class WindowedAttention(nn.Module):
    """Attention of every token to its window and to global tokens, and of these to all tokens."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        for name in _NAMES:
            self.add_module(name, getattr(original, name))
        self.heads = int(original.num_heads)
        self.window = int(original.one_sided_attn_window_size)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor, **_: Any
    ) -> tuple[torch.Tensor]:
        """Transform hidden_states [B, S, H].

        attention_mask [B, S]: negative for padding, positive for global tokens, 0 for others.
        """
        place = torch.arange(hidden_states.shape[1])
        near = (place[:, None] - place).abs() <= self.window
        padded, far_seen = attention_mask < 0, attention_mask > 0
        shown = (~padded)[:, None, None, :]
        # What padding sees is not used, but it sees something.
        visible = (near | far_seen[:, None, None, :]) & shown | padded[:, None, :, None]
        local = self._attended(hidden_states, "", visible)
        everything = shown | padded[:, None, :, None]
        overall = self._attended(hidden_states, "_global", everything.expand_as(visible))
        attended = torch.where(far_seen[..., None], overall, local)
        return (torch.where(padded[..., None], torch.zeros_like(attended), attended),)

    def _attended(self, x: torch.Tensor, of: str, visible: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            self.get_submodule(f"{name}{of}")(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in _NAMES[:3]
        )
        scale = query.shape[-1] ** -0.5
        attended = attend_with_sinks(query, key, value, scale, visible, None, layout="BSND")
        return attended.flatten(2)


def is_windowed_attention(module: Any) -> bool:
    """Whether a module attends to a window with projections, and to global tokens with others."""
    layers = (getattr(module, name, None) for name in _NAMES)
    return hasattr(module, "one_sided_attn_window_size") and all(
        isinstance(layer, nn.Linear) for layer in layers
    )


class WindowedAttentionRole(Role[nn.Module, WindowedAttention]):
    """Attention in chunks of a window."""

    def match(self, original: nn.Module) -> nn.Module:
        """Take the whole module."""
        return original

    def build(self, parts: nn.Module) -> Iterator[WindowedAttention]:
        """Yield attention with a mask."""
        yield WindowedAttention(parts)

    def prove(self, original: Any, built: WindowedAttention) -> float:
        """Compare with a small window: rows without and with global tokens, and with padding."""
        mask = torch.zeros(BATCH, _LENGTH)
        mask[-1, -3:] = -_FAR
        alone, some = mask, mask.clone()
        some[:, [0, _LENGTH // 2]] = _FAR
        x = torch.randn(BATCH, _LENGTH, original.query.in_features)
        worst = 0.0
        with _small_window(original), _small_window(built):
            for spread in _SPREADS:
                given = spread_to(x, original.query(x), spread)
                for each in (alone, some):
                    expected = original(
                        given,
                        attention_mask=each,
                        is_index_masked=each < 0,
                        is_index_global_attn=each > 0,
                        is_global_attn=bool((each > 0).any()),
                    )[0]
                    (actual,) = built(given, attention_mask=each)
                    worst = max(worst, compare(expected, actual, "attention"))
        return worst

    def report(
        self, findings: Findings, site: str, built: WindowedAttention, difference: float
    ) -> None:
        """Record the nodes: over the window, and of global tokens."""
        findings.replaced("npu_fusion_attention", difference, nodes=2)


def keep_lengths(model: nn.Module) -> None:
    """Let a model whose windowed attention is replaced take texts of any length as they are."""
    for module in model.modules():
        if hasattr(module, _PADDED) and not any(map(is_windowed_attention, module.modules())):
            _leave_lengths(module)


def _leave_lengths(module: Any) -> None:
    def unpadded(**given: Any) -> tuple[Any, ...]:
        given.pop("pad_token_id")
        return 0, *given.values()

    setattr(module, _PADDED, unpadded)


@contextmanager
def _small_window(attention: Any) -> Iterator[None]:
    name = "window" if isinstance(attention, WindowedAttention) else "one_sided_attn_window_size"
    size = getattr(attention, name)
    setattr(attention, name, _WINDOW)
    try:
        yield
    finally:
        setattr(attention, name, size)

"""What layers of compressed attention keep of earlier tokens (compressed_attention.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .caches.step import State
from .positioned_layer import PositionedLayer

_PARTS = ("q_a_proj", "q_a_norm", "q_b_proj", "q_b_norm", "kv_proj", "kv_norm", "sinks")
_MORE_PARTS = ("o_a_proj", "o_b_proj", "compressor", "rope_layer_type", "sliding_window")
WINDOW, PENDING, INDEX_PENDING = "window_state", "pending_state", "index_pending_state"
ENTRIES, INDEX_ENTRIES = "compressed_state", "index_compressed_state"


def is_compressed_attention(module: nn.Module) -> bool:
    """Whether a module attends to a window, and to what a compressor makes of tokens before."""
    return all(hasattr(module, name) for name in (*_PARTS, *_MORE_PARTS))


class CompressedLayer(PositionedLayer):
    """What a layer keeps, by the names of its states, in a cache of transformers.

    ``slots``: T, of earlier and new tokens.
    """

    is_compileable = False

    def __init__(self, slots: Any) -> None:
        from transformers.cache_utils import CacheLayerMixin

        CacheLayerMixin.register(CompressedLayer)  # which a cache tells layers of attention by
        self.kept: dict[str, torch.Tensor] = {}
        self.slots = slots


def states_of(attention: Any) -> list[State]:
    """Return what a layer keeps, from the sizes of its weights."""
    layer, size = attention.layer_idx, attention.head_dim
    states = [State(layer, WINDOW, 0, (attention.sliding_window - 1, size), False)]
    compressor = attention.compressor
    if compressor is None:
        return states
    for each, pending, entries in (
        (compressor, PENDING, ENTRIES),
        (getattr(compressor, "indexer", None), INDEX_PENDING, INDEX_ENTRIES),
    ):
        if each is not None:
            shape = _kept_tokens(each), 2 * each.kv_proj.out_features
            states.append(State(layer, pending, 0, shape, False))
            rate = each.compress_rate
            states.append(State(layer, entries, 0, (each.head_dim,), False, rate))
    return states


def series_of(compressor: Any) -> int:
    """Return how many keys of a token there are, of which each counts in another window."""
    return compressor.kv_proj.out_features // compressor.head_dim


def _kept_tokens(compressor: Any) -> int:
    """Return how many tokens before a step windows may reach back to that end in it."""
    return series_of(compressor) * compressor.compress_rate - 1


def new_layer(attention: Any, rows: int, slots: Any) -> CompressedLayer:
    """Return what a layer keeps before the first token."""
    layer = CompressedLayer(slots)
    for state in states_of(attention):
        shape = (0, *state.shape) if state.rate else state.shape
        layer.kept[state.kind] = torch.zeros((rows, *shape))
    return layer

"""Caches of transformers with plain layers: masks see to windows, and every layer grows alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def plain_cache(layers: int) -> Any:
    """Return an empty cache of as many layers."""
    from transformers.cache_utils import Cache, DynamicLayer

    return Cache(layers=[DynamicLayer() for _ in range(layers)])


def filled_cache(keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> Any:
    """Return a cache of every layer's past keys and values [B, N, T, D]."""
    cache = plain_cache(len(keys))
    for layer, key, value in zip(cache.layers, keys, values, strict=True):
        layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value
    return cache

"""A step of an encoder-decoder's decoder over a preallocated cache, by its own forward pass.

Keys and values of the decoder's own tokens are written in place; those of the source, which the
encoder computed once, are read. Every row has as many tokens, so that one list of positions serves
all. Shapes are those of encoder_decoder.py; C is the capacity of the cache.
"""

from __future__ import annotations

from typing import Any

import torch

from . import traced_ops
from .attention_interface import AttentionCall, shared_step
from .caches.static import StaticStep
from .caches.step import LayerCache, compressed_causal_mask
from .encoder_decoder import CachedPairs, DecoderPart, EncoderPart
from .original_cache import StepLayer
from .proof import NotProven

_PAST, _NEW, _CAPACITY = 3, 5, 11  # to trace with: all different, and not 0 or 1


class StaticDecoderPart(DecoderPart):
    """New tokens to logits; writes their keys and values into a cache [B, N, C, D]."""

    cache_position = ("cache_position",)
    causal_mask: torch.Tensor

    def __init__(self, encoder: EncoderPart, vocabulary: int) -> None:
        super().__init__(encoder, vocabulary)
        self.register_buffer("causal_mask", compressed_causal_mask())

    def _decode(
        self,
        input_ids: torch.Tensor,
        positions: tuple[torch.Tensor, ...],
        mask: torch.Tensor | None,
        own: CachedPairs,
        cross: CachedPairs,
    ) -> tuple[torch.Tensor, CachedPairs]:
        shared = _OwnTokens(own, input_ids, positions[0], self.causal_mask)
        with shared_step(shared):
            logits = self._logits(input_ids, mask, shared.cache, cross, shared.mask_token)
        if shared.attended != len(self.sizes):
            raise NotProven(
                "a static cache needs fused attention in every layer of the decoder; "
                "cache='dynamic' does not"
            )
        return logits, [(layer.cache.key, layer.cache.value) for layer in shared.layers]

    def first_cache(self, batch: int, tokens: int) -> list[torch.Tensor]:
        """Return what a cache for ``tokens`` may hold before it is written: anything."""
        return [cache.fill_(torch.nan) for cache in self.empty_cache(batch, tokens)]

    def example(
        self, source: tuple[torch.Tensor, ...], encoded: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Return arguments to trace with, for what the encoder part takes and returns."""
        batch = source[0].shape[0]
        mask = [source[1]] if self.masked else []
        ids = torch.zeros((batch, _NEW), dtype=torch.int64)
        positions = torch.arange(_PAST, _PAST + _NEW)
        return (ids, positions, *mask, *self.empty_cache(batch, _CAPACITY), *encoded[1:])

    def dimensions(self) -> dict[str, tuple[str | int, ...]]:
        """Return the shape of every input and output, with names for dynamic sizes."""
        capacity = {"past": "capacity", "total": "capacity"}
        shapes: dict[str, tuple[str | int, ...]] = {
            name: tuple(capacity.get(size, size) if isinstance(size, str) else size for size in of)
            for name, of in super().dimensions().items()
        }
        return {**shapes, "cache_position": ("sequence",)}


class _OwnTokens:
    """The cache of the decoder's own tokens, which its attention knows (attention_interface.py)."""

    def __init__(
        self,
        own: CachedPairs,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        causal_mask: torch.Tensor,
    ) -> None:
        batch = input_ids.shape[0]
        self._causal_mask = causal_mask
        self._lengths = (positions[-1:] + 1).expand(batch)
        of_rows = positions.view(1, 1, -1, 1).expand(batch, 1, -1, 1)
        # The lengths of new tokens are those of the tensor: no row is padded.
        step = StaticStep(of_rows, self._lengths, self._lengths, causal_mask)
        past = positions[0]
        self.layers = [_OwnLayer(step, LayerCache(*pair), past) for pair in own]
        # Takes the place of the mask [B, 1, S, C]: models pass on one that has four axes.
        self.mask_token = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
        self.attended = 0

    @property
    def cache(self) -> Any:
        """The cache as transformers has it."""
        from transformers.cache_utils import Cache

        return Cache(layers=list(self.layers))

    def mask(self, mask_function: Any, local_size: int | None) -> None:
        """Leave masks, which are of the source, to be made as ever."""
        del mask_function, local_size

    def attend(self, call: AttentionCall) -> torch.Tensor | None:
        """Attend over the cache, with the bias of the call; return [B, S, N, D].

        Returns None over the source.
        """
        if call.mask is not self.mask_token:
            return None
        if call.obstacle is not None and call.bias is None:
            raise NotProven(f"a static cache needs fused attention: {call.obstacle}")
        self.attended += 1
        return traced_ops.fused_infer_attention(
            call.query,
            call.key,
            call.value,
            self._causal_mask,
            None,
            self._lengths,
            pse_shift=None if call.bias is None else call.bias.to(call.query.dtype),
            num_heads=call.query.shape[1],
            num_key_value_heads=call.key.shape[1],
            scale=call.scale,
            sparse_mode=3,
        )[0]

    def cleared(self, cached: torch.Tensor) -> torch.Tensor:
        """Return keys or values of the source as they are: all were written."""
        return cached


class _OwnLayer(StepLayer):
    """A layer whose past has a length, the same in every row."""

    def __init__(self, step: StaticStep, cache: LayerCache, past: torch.Tensor) -> None:
        super().__init__(step, cache)
        self._past = past

    def get_seq_length(self) -> Any:
        """Return the number of past tokens, a tensor: a run has its own."""
        return self._past

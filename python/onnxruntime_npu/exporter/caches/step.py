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
from .sequences import Sequences

_SCALES_OF_TOKENS_AND_HEADS = 3  # npu_fused_infer_attention_score: [B, Nkv, T]

Rounded = tuple[torch.Tensor, torch.Tensor]  # integers of int8 and their scales


def compressed_causal_mask() -> torch.Tensor:
    """Return the fixed mask that sparse modes 2..4 require, independent of the sequence lengths."""
    return torch.ones(2048, 2048, dtype=torch.bool).triu(1)


class CacheSizes(NamedTuple):
    """Of one layer: the number of key/value heads, and the sizes of a key and a value.

    ``index_key``: that of what an indexer keeps of each token; 0 without one. ``latent``: keys are
    latents, which are values, too, and in the place of values are rotated columns of keys.
    """

    heads: int
    key: int
    value: int
    index_key: int = 0
    latent: bool = False

    @property
    def rounded(self) -> dict[str, int]:
        """The sizes of what an int8 cache rounds: not of rotated columns of keys."""
        return {"key": self.key} if self.latent else {"key": self.key, "value": self.value}


class State(NamedTuple):
    """One that a layer keeps in the place of earlier tokens, as large for any number of them.

    With a ``rate`` it has an entry for every so many tokens, of that shape.
    """

    layer: int
    kind: str  # conv_state, recurrent_state, or one of compressed_attention.py
    place: int  # among those of its kind in the layer
    shape: tuple[int, ...]  # of a row
    # Over all tokens, or it has numbers of tokens, so that it is float32 in any precision.
    summed: bool
    rate: int = 0

    @property
    def name(self) -> str:
        """The end of the name of its input and output."""
        return f"{self.layer}.{self.kind}" + (f".{self.place}" if self.place else "")

    def dtype(self, floats: torch.dtype) -> torch.dtype:
        """Return the dtype of a state of a model whose activations are ``floats``."""
        return torch.float32 if self.summed else floats


class LayerCache(NamedTuple):
    """Keys and values of one layer; of an int8 cache, with a float32 scale for each token and head.

    Of a growing and a static cache, key and value are [B, Nkv, T or C, D], scales [B, Nkv, T or C].
    Rows of int8 blocks have their scales within (scaled_rows.py). Rotated columns beside latents
    are floats in any cache.
    ``index_key``, laid out as of one head, are what an indexer chooses the keys by that are seen.
    """

    key: torch.Tensor
    value: torch.Tensor
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None
    index_key: torch.Tensor | None = None

    @property
    def rounded(self) -> bool:
        """Whether the cache holds int8."""
        return self.key.dtype == torch.int8

    def parts(self, latent: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return keys, values and further columns of keys, which a cache of latents has."""
        return (self.key, self.key, self.value) if latent else (self.key, self.value, None)


class Visibility(NamedTuple):
    """The arguments of fused attention that select the visible keys of a query token."""

    mask: torch.Tensor
    sparse_mode: int
    query_lengths: torch.Tensor | None = None
    kv_lengths: torch.Tensor | None = None


def with_sinks(attended: torch.Tensor, log_sums: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Return attention [.., Nq, D], of log-sum-exp [.., Nq, 1], with a further score of each head.

    The score [Nq] has a share of the weights, and no value.
    """
    share = torch.sigmoid(log_sums - sinks.float()[:, None])
    return attended * share.to(attended.dtype)


class Step(abc.ABC):
    """State of one forward pass that all layers share."""

    heads_axis = 1  # of cached keys and values, and of new ones and queries, which lie alike
    # Of each new token [B, S], counted over all blocks of a cache [blocks, size, Nkv, D].
    block_slots: torch.Tensor | None = None
    sequences: Sequences | None = None  # of a cache of a fixed size, whose rows differ in length

    def __init__(self) -> None:
        # Of the new tokens of a rebuilt decoder, tensors [B, 1, S, D], or [B, S, 1, D] if heads are
        # behind tokens; None without rotation.
        self.cos: Any = None
        self.sin: Any = None
        self.states: list[torch.Tensor] = []  # those before, and after decoding those of the step

    def laid_out(self, rows: torch.Tensor) -> torch.Tensor:
        """Return rows [B, N, S, D] with the heads at ``heads_axis``."""
        return rows if self.heads_axis == 1 else rows.transpose(1, self.heads_axis)

    def update(self, past: LayerCache, key: torch.Tensor, value: torch.Tensor) -> LayerCache:
        """Add new keys and values to a layer's cache, rounded where it holds int8.

        They are [B, Nkv, S, D] with the heads at ``heads_axis``.
        """
        written: dict[str, Any] = {}
        for kind, new in (("key", key), ("value", value)):
            cached = getattr(past, kind)
            if cached.dtype == torch.int8:
                rounded = torch.ops.npu.npu_dynamic_quant(new)
                written |= self._write_rounded(past, kind, rounded)
            else:
                written[kind] = self._write(cached, new)
        return past._replace(**written)

    def update_index(self, past: LayerCache, keys: torch.Tensor) -> LayerCache:
        """Add new keys of an indexer, [B, 1, S, D] with the head at ``heads_axis``."""
        assert past.index_key is not None
        return past._replace(index_key=self._write(past.index_key, keys))

    @abc.abstractmethod
    def _write(self, past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Add new [B, Nkv, S, D], heads at ``heads_axis``, to cached keys or values.

        Or scales [B, Nkv, S] to those beside them.
        """

    def _write_rounded(self, past: LayerCache, kind: str, new: Rounded) -> dict[str, torch.Tensor]:
        """Add new integers and scales of a kind; return what they have become, by its name."""
        scales = f"{kind}_scale"
        return {
            kind: self._write(getattr(past, kind), new[0]),
            scales: self._write(getattr(past, scales), new[1]),
        }

    @abc.abstractmethod
    def numbers(self, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the number of each of ``capacity`` keys in its row, [B or 1, T], from 0 on.

        And that of each row's last token, [B, 1]. Padding has no number of its own.
        """

    @abc.abstractmethod
    def visibility(self, capacity: int, window: int | None) -> Visibility:
        """Return the visible keys of ``capacity`` for a query token, at most ``window`` back."""

    def attend(
        self,
        query: torch.Tensor,
        cache: LayerCache,
        *,
        num_heads: int,
        num_key_value_heads: int,
        scale: float,
        window: int | None,
        query_rope: torch.Tensor | None = None,
        key_bias: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend from query [B, Nq, S, D] over the updated cache; return [B, S, Nq, D].

        The query, and query_rope, have their heads at ``heads_axis``. With query_rope the cache
        holds latents, which are keys and values, and rotated columns. key_bias [B or 1, Nq, 1, T]:
        added to the scaled scores; sinks [Nq]: a further score of each head, without a value.
        """
        seen = self.visibility(cache.key.shape[2], window)
        key, value, key_rope = cache.parts(query_rope is not None)
        attended, log_sums = traced_ops.fused_infer_attention(
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
            pse_shift=None if key_bias is None else key_bias.to(query.dtype),
            query_rope=query_rope,
            key_rope=key_rope,
            softmax_lse_flag=sinks is not None,
            **self._scales(cache),
        )
        return attended if sinks is None else with_sinks(attended, log_sums.transpose(1, 2), sinks)

    def _scales(self, cache: LayerCache) -> dict[str, Any]:
        """Return the arguments of attention that scale an int8 cache."""
        if cache.key_scale is None:
            return {}
        of_values = cache.value_scale
        return {
            "key_scale": cache.key_scale,
            # Latents have one scale: they are values, too.
            "value_scale": cache.key_scale if of_values is None else of_values,
            "antiquant_mode": _SCALES_OF_TOKENS_AND_HEADS,
        }

"""The part of a decoder that one of several ranks computes: some heads, and columns of each MLP.

Each rank has all activations between layers. Of attention it computes the keys, values and outputs
of its query heads, of an MLP the activations of its columns; the projection back is a sum over all
ranks, one ``npu_mm_all_reduce_base``. What cannot be divided so is computed by every rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import ArgumentError, ExportError
from .divided_linear import columns_of, rows_of
from .proof import Findings
from .roles.attention import Attention
from .roles.decoder import Decoder
from .roles.layer import DecoderLayer
from .roles.mlp import GatedMlp

_QUANTS = ("none", "w8a16", "w4a16", "w8a8", "w8a8_dynamic")


class Share(NamedTuple):
    """What one rank has of parts that can be divided."""

    rank: int
    ranks: int

    def of(self, count: int) -> range:
        """Return this rank's of ``count`` things, as many as the others' or one more or less."""
        return range(count * self.rank // self.ranks, count * (self.rank + 1) // self.ranks)


class _Sums:
    """Makes projections that are summed over the ranks."""

    def __init__(self, share: Share, dtype: torch.dtype, findings: Findings) -> None:
        """``dtype``: of activations; ``findings`` record the sums."""
        self._share, self._dtype, self._findings = share, dtype, findings

    def of(self, linear: nn.Module, rows: range) -> Any:
        """Return the projection back from this rank's part, summed; one rank adds the bias."""
        summed = rows_of(linear, rows, self._dtype, biased=self._share.rank == 0)
        left: dict[str, int] = getattr(summed, "operators", {})
        for op, count in getattr(linear, "operators", {}).items():
            self._findings.without(op, count - left.get(op, 0))
        self._findings.replaced("npu_mm_all_reduce_base", 0.0)
        return summed


def _times(size: int, places: range, start: int = 0) -> range:
    """Return the columns of places that have ``size`` columns each, from column ``start`` on."""
    return range(start + places.start * size, start + places.stop * size)


def _key_heads(queries: range, group: int) -> list[int]:
    """Return the key heads of some query heads, of which ``group`` share one.

    Attention takes as many query heads for each key head: where a part of the heads is otherwise,
    every query head gets its own copy.
    """
    used = [head // group for head in queries]
    distinct = sorted(set(used))
    even = all(used.count(head) * len(distinct) == len(used) for head in distinct)
    return distinct if even else used


def _attention(original: Attention, share: Share, sums: _Sums) -> Attention:
    heads, size = original.heads, original.head_size
    queries = share.of(heads)
    keys = _key_heads(queries, heads // original.kv_heads)
    first_key, first_value = heads * size, (heads + original.kv_heads) * size
    columns = [_times(size, queries)]
    for first in (first_key, first_value):
        columns += [_times(size, range(head, head + 1), first) for head in keys]
    qkv: Any = columns_of(original.qkv, columns)
    return Attention(
        qkv,
        sums.of(original.out, _times(size, queries)),
        heads=len(queries),
        kv_heads=len(keys),
        scale=original.scale,
        window=original.window,
        rotary_mode=original.rotary_mode,
        q_norm=original.q_norm,
        k_norm=original.k_norm,
    )


def _mlp(original: GatedMlp, share: Share, sums: _Sums) -> GatedMlp:
    size = original.down.in_features
    part = share.of(size)
    up = range(size + part.start, size + part.stop)
    gate_up: Any = columns_of(original.gate_up, [part, up])
    return GatedMlp(gate_up, sums.of(original.down, part), original.activation)


def check_quant(quant: str, dtype: torch.dtype) -> None:
    """Refuse quantised weights that the operator of sums does not take."""
    if quant not in _QUANTS:
        raise ArgumentError(
            f"expected quant of {', '.join(_QUANTS)} with tensor_parallel, got {quant!r}"
        )
    if quant.startswith("w8a8") and dtype == torch.float32:
        raise ArgumentError(
            f"expected dtype float16 or bfloat16 with quant={quant!r} and tensor_parallel, got "
            "float32"
        )


def check_divisible(decoder: object, ranks: int) -> None:
    """Refuse a decoder that cannot be divided among so many ranks."""
    if not isinstance(decoder, Decoder):
        raise ExportError(
            f"cannot divide the model among {ranks} ranks: expected one that is rebuilt from fused "
            "operators, got one that is exported by its own forward pass: pass tensor_parallel=1"
        )
    if decoder.heads < ranks:
        raise ArgumentError(
            f"expected tensor_parallel of at most the model's {decoder.heads} heads, got {ranks}"
        )


def part_of(decoder: Decoder, rank: int, ranks: int, findings: Findings) -> Decoder:
    """Return what one rank computes. Weights that it does not have are not copied."""
    share = Share(rank, ranks)
    sums = _Sums(share, decoder.dtype, findings)
    layers = []
    whole: Any = decoder.layers
    for index, layer in enumerate(whole):
        mlp = layer.mlp
        if isinstance(mlp, GatedMlp) and mlp.down.in_features >= ranks:
            mlp = _mlp(mlp, share, sums)
        else:
            findings.keep(f"layers.{index}", "mlp", "its columns are not divided")
        attention = _attention(layer.attention, share, sums)
        layers.append(DecoderLayer(layer.input_norm, attention, layer.post_norm, mlp))
    return Decoder(decoder.embedding, decoder.head, decoder.rotary, layers, decoder.norm)

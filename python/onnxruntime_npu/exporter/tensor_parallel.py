"""The part of a decoder that one of several ranks computes: some heads, and columns of each MLP.

Each rank has all activations between layers. Of attention it computes the keys, values and outputs
of its query heads, of an MLP the activations of its columns; the projection back is a sum over all
ranks, one ``npu_mm_all_reduce_base``. What cannot be divided so is computed by every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import ArgumentError, ExportError
from .proof import Findings
from .roles.attention import Attention
from .roles.decoder import Decoder
from .roles.layer import DecoderLayer
from .roles.linear import Linear
from .roles.mlp import GatedMlp

GROUP = "tensor_parallel"  # what the file calls all ranks, for the provider's option `groups`


class SummedLinear(Linear):
    """A projection summed over the ranks, of which each has some rows of the weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project x [.., in], this rank's part, to [.., out]."""
        return torch.ops.npu.npu_mm_all_reduce_base(x, self.weight, GROUP, bias=self.bias)


class Share:
    """What one rank has of parts that can be divided."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank = rank
        self._ranks = ranks

    def of(self, count: int) -> range:
        """Return this rank's of ``count`` things, as many as the others' or one more or less."""
        return range(count * self._rank // self._ranks, count * (self._rank + 1) // self._ranks)

    def rows(self, linear: Linear, rows: range) -> SummedLinear:
        """Return the projection back from this rank's part; one rank adds the bias."""
        bias = None if linear.bias is None or self._rank else linear.bias.detach()
        return SummedLinear(linear.weight.detach()[rows.start : rows.stop], bias)


def _columns(linear: Linear, parts: Sequence[range]) -> Linear:
    """Return the projection to some of the outputs."""

    def taken(values: torch.Tensor) -> torch.Tensor:
        pieces = [values[..., part.start : part.stop] for part in parts]
        return torch.cat(pieces, -1)

    bias = None if linear.bias is None else taken(linear.bias.detach())
    return Linear(taken(linear.weight.detach()), bias)


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


def _attention(original: Attention, share: Share) -> Attention:
    heads, size = original.heads, original.head_size
    queries = share.of(heads)
    keys = _key_heads(queries, heads // original.kv_heads)
    first_key, first_value = heads * size, (heads + original.kv_heads) * size
    columns = [_times(size, queries)]
    for first in (first_key, first_value):
        columns += [_times(size, range(head, head + 1), first) for head in keys]
    assert isinstance(original.qkv, Linear) and isinstance(original.out, Linear)
    return Attention(
        _columns(original.qkv, columns),
        share.rows(original.out, _times(size, queries)),
        heads=len(queries),
        kv_heads=len(keys),
        scale=original.scale,
        window=original.window,
        rotary_mode=original.rotary_mode,
        q_norm=original.q_norm,
        k_norm=original.k_norm,
    )


def _mlp(original: GatedMlp, share: Share) -> GatedMlp:
    assert isinstance(original.gate_up, Linear) and isinstance(original.down, Linear)
    size = original.down.in_features
    part = share.of(size)
    up = range(size + part.start, size + part.stop)
    return GatedMlp(
        _columns(original.gate_up, [part, up]), share.rows(original.down, part), original.activation
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
    layers = []
    whole: Any = decoder.layers
    for index, layer in enumerate(whole):
        mlp = layer.mlp
        if isinstance(mlp, GatedMlp) and mlp.down.in_features >= ranks:
            mlp = _mlp(mlp, share)
            findings.replaced("npu_mm_all_reduce_base", 0.0)
        else:
            findings.keep(f"layers.{index}", "mlp", "its columns are not divided")
        attention = _attention(layer.attention, share)
        findings.replaced("npu_mm_all_reduce_base", 0.0)
        layers.append(DecoderLayer(layer.input_norm, attention, layer.post_norm, mlp))
    return Decoder(decoder.embedding, decoder.head, decoder.rotary, layers, decoder.norm)

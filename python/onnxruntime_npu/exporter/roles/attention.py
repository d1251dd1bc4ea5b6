"""The role of attention: projections, rotary embedding, cache and grouped-query attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ..caches.step import LayerCache, Step
from ..proof import Findings, NotProven, compare, spread_to
from .linear import Linear, Projection
from .norm import KeptNorm, NormRole, RmsNorm
from .probes import BATCH, NEW, StepProbe
from .role import Role, part

# A deviation of queries, keys and values beyond where models clip them, as OLMo at 8.
_CLIPPED = 30.0


class Attention(nn.Module):
    """Grouped-query attention: joint projection, ``npu_rotary_mul``, cache, fused attention."""

    def __init__(
        self,
        qkv: Projection,
        out: Projection,
        *,
        heads: int,
        kv_heads: int,
        scale: float,
        window: int | None,
        rotary_mode: str | None,
        q_norm: RmsNorm | KeptNorm | None = None,
        k_norm: RmsNorm | KeptNorm | None = None,
    ) -> None:
        super().__init__()
        self.qkv = qkv
        self.out = out
        self.q_norm = q_norm
        self.k_norm = k_norm
        self.heads = heads
        self.kv_heads = kv_heads
        self.head_size = qkv.out_features // (heads + 2 * kv_heads)
        self.scale = scale
        self.window = window
        self.rotary_mode = rotary_mode

    def forward(
        self, x: torch.Tensor, step: Step, past: LayerCache
    ) -> tuple[torch.Tensor, LayerCache]:
        """Attend from x [B, S, H]; return [B, S, H] and the updated cache of this layer."""
        heads = self.qkv(x).unflatten(-1, (self.heads + 2 * self.kv_heads, -1))
        if step.heads_axis == 1:
            heads = heads.transpose(1, 2)
        groups = [self.heads, self.kv_heads, self.kv_heads]
        query, key, value = heads.split(groups, dim=step.heads_axis)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.rotary_mode is not None:
            query = rotate(query, step.cos, step.sin, self.rotary_mode)
            key = rotate(key, step.cos, step.sin, self.rotary_mode)
        present = step.update(past, key, value)
        attended = step.attend(
            query,
            present,
            num_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            scale=self.scale,
            window=self.window,
        )
        return self.out(attended.flatten(2)), present


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> torch.Tensor:
    """Rotate the columns of x [.., D] that the tables have; the rest stays."""
    size = cos.shape[-1]
    if size == x.shape[-1]:
        return torch.ops.npu.npu_rotary_mul(x, cos, sin, mode)
    rotated = torch.ops.npu.npu_rotary_mul(x[..., :size], cos, sin, mode)
    return torch.cat([rotated, x[..., size:]], -1)


class AttentionParts(NamedTuple):
    """The projections of attention, its heads and the norms of queries and keys."""

    qkv: tuple[nn.Linear, ...]  # one joint projection, or three
    out: nn.Linear
    head_size: int
    heads: int
    kv_heads: int
    scale: float
    norms: tuple[nn.Module, ...]  # of queries and keys, or none


class AttentionRole(Role[AttentionParts, Attention]):
    """Attention of one layer; it must be proven, since the cache interface depends on it."""

    def __init__(self, rotary: nn.Module | None, window: int | None) -> None:
        """Take the original's rotary embedding, if it has one, and the layer's window."""
        self._rotary = rotary
        self._window = window

    def match(self, original: nn.Module) -> AttentionParts:
        """Find the projections and their number of heads."""
        head_size = int(part(original, "attention", "head_dim"))
        out = part(original, "attention", "o_proj")
        joined = getattr(original, "qkv_proj", None)
        if joined is not None:
            qkv: tuple[nn.Linear, ...] = (joined,)
        else:
            qkv = tuple(part(original, "attention", f"{name}_proj") for name in "qkv")
        heads = out.in_features // head_size
        kv_heads = (sum(layer.out_features for layer in qkv) // head_size - heads) // 2
        if kv_heads < 1 or heads % kv_heads:
            raise NotProven(f"expected heads in groups, got {heads} heads of size {head_size}")
        norms = [getattr(original, name, None) for name in ("q_norm", "k_norm")]
        return AttentionParts(
            qkv,
            out,
            head_size,
            heads,
            kv_heads,
            float(getattr(original, "scaling", head_size**-0.5)),
            tuple(norm for norm in norms if norm is not None),
        )

    def build(self, parts: AttentionParts) -> Iterator[Attention]:
        """Yield attention with each form of rotation; the last one ignores positions."""
        qkv, out = Linear.joined(*parts.qkv), Linear.joined(parts.out)
        norms: list[RmsNorm | KeptNorm | None] = [NormRole().proven(n)[0] for n in parts.norms]
        q_norm, k_norm = norms if norms else (None, None)
        modes = () if self._rotary is None else ("half", "interleave")
        for mode in (*modes, None):
            yield Attention(
                qkv,
                out,
                heads=parts.heads,
                kv_heads=parts.kv_heads,
                scale=parts.scale,
                window=self._window,
                rotary_mode=mode,
                q_norm=q_norm,
                k_norm=k_norm,
            )

    def prove(self, original: nn.Module, built: Attention) -> float:
        """Compare outputs and caches, over a filled cache and a padded row."""
        x = torch.randn(BATCH, NEW, built.qkv.in_features)
        probe = StepProbe(self._rotary, self._window, built.kv_heads, built.head_size)
        differences = []
        for spread in (2.0, _CLIPPED):
            given = spread_to(x, built.qkv(x), spread)
            expected, cache = probe.run(original, layer_index(original), given)
            actual, present = built(given, probe.step, probe.past)
            if spread != _CLIPPED:  # where one key has all the weight, and rounding chooses it
                what = "attention output"
                differences.append(compare(probe.real(expected), probe.real(actual), what))
            differences.append(compare(cache[0], present[0], "cached keys"))
            differences.append(compare(cache[1], present[1], "cached values"))
        return max(differences)

    def report(self, findings: Findings, site: str, built: Attention, difference: float) -> None:
        """Record the nodes of rotation, of norms of queries and keys, and of attention."""
        if built.rotary_mode is not None:
            findings.replaced("npu_rotary_mul", difference, nodes=2)
        if built.q_norm is not None:
            findings.replaced("npu_rms_norm", difference, nodes=2)
        findings.replaced("npu_fused_infer_attention_score", difference)


def layer_index(attention: nn.Module) -> int:
    """Return the index of the layer whose cache an original attention uses."""
    return int(getattr(attention, "layer_idx", 0))

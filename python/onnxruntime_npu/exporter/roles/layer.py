"""The role of a decoder layer: the combination of norms, attention, MLP and residuals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ..caches.step import LayerCache, Step
from ..proof import Findings, NotProven, compare
from .attention import Attention, AttentionRole, layer_index
from .experts import RoutedMlpRole
from .mlp import MlpRole
from .norm import KeptNorm, NormRole, RmsNorm
from .probes import BATCH, NEW, StepProbe
from .role import Role, part


class DecoderLayer(nn.Module):
    """Pre-norm decoder layer. The next norm adds the residual, which is passed separately."""

    def __init__(
        self,
        input_norm: RmsNorm | KeptNorm,
        attention: Attention,
        post_norm: RmsNorm | KeptNorm,
        mlp: nn.Module,
    ) -> None:
        super().__init__()
        self.input_norm = input_norm
        self.attention = attention
        self.post_norm = post_norm
        self.mlp = mlp

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        step: Step,
        past: LayerCache,
    ) -> tuple[torch.Tensor, torch.Tensor, LayerCache]:
        """Return the output not yet added, the residual [B, S, H] and the layer's cache."""
        if residual is None:
            normed, residual = self.input_norm(x), x
        else:
            normed, residual = self.input_norm.add(x, residual)
        attended, present = self.attention(normed, step, past)
        normed, residual = self.post_norm.add(attended, residual)
        return self.mlp(normed), residual, present


class LayerParts(NamedTuple):
    """The parts of a layer; each has its own role."""

    input_norm: nn.Module
    attention: nn.Module
    post_norm: nn.Module
    mlp: nn.Module


class LayerRole(Role[LayerParts, DecoderLayer]):
    """A layer, built from the replacements of its parts."""

    def __init__(
        self,
        rotary: nn.Module | None,
        window: int | None,
        findings: Findings,
        site: str,
        *,
        first: bool,
    ) -> None:
        self._rotary = rotary
        self._window = window
        self._findings = findings
        self._site = site
        self._first = first

    def match(self, original: nn.Module) -> LayerParts:
        """Find the parts."""
        names = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
        return LayerParts(*(part(original, self._site, name) for name in names))

    def build(self, parts: LayerParts) -> Iterator[DecoderLayer]:
        """Yield the layer of the replaced parts."""
        findings, site = self._findings, self._site
        first_norm = NormRole(adds_residual=not self._first)
        attention = AttentionRole(self._rotary, self._window)
        mlp = RoutedMlpRole() if hasattr(parts.mlp, "experts") else MlpRole()
        yield DecoderLayer(
            first_norm.replace(parts.input_norm, findings, f"{site}.input_layernorm"),
            attention.replace(parts.attention, findings, f"{site}.self_attn"),
            NormRole().replace(parts.post_norm, findings, f"{site}.post_attention_layernorm"),
            mlp.replace(parts.mlp, findings, f"{site}.mlp"),
        )

    def prove(self, original: nn.Module, built: DecoderLayer) -> float:
        """Compare the output plus residual, with and without an incoming residual."""
        attention = built.attention
        x = torch.randn(BATCH, NEW, attention.qkv.in_features)
        probe = StepProbe(self._rotary, self._window, attention.kv_heads, attention.head_size)
        index = layer_index(part(original, self._site, "self_attn"))
        expected, _ = probe.run(original, index, x)
        worst = 0.0
        for residual in (None, torch.randn_like(x)):
            given = x if residual is None else x - residual
            delta, carried, _ = built(given, residual, probe.step, probe.past)
            actual, what = probe.real(delta + carried), f"{self._site}: layer output"
            worst = max(worst, compare(probe.real(expected), actual, what))
        return worst

    def keep(
        self, original: nn.Module, findings: Findings, site: str, reason: NotProven
    ) -> DecoderLayer:
        """Raise; the reason names the site, which may be that of a part."""
        raise reason

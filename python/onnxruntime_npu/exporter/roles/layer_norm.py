"""The role of a layer normalization."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from ..proof import Findings, NotProven, compare
from .probes import BATCH, NEW
from .role import Role


class LayerNormEval(nn.Module):
    """LayerNorm over the last axis as ``npu_layer_norm_eval``."""

    def __init__(
        self, weight: torch.Tensor | None, bias: torch.Tensor | None, size: int, epsilon: float
    ) -> None:
        super().__init__()
        self.weight = None if weight is None else nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.size = size
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [.., H]."""
        return torch.ops.npu.npu_layer_norm_eval(
            x, [self.size], self.weight, self.bias, self.epsilon
        )


class LayerNormRole(Role[nn.LayerNorm, LayerNormEval]):
    """torch's LayerNorm over one axis."""

    def match(self, original: nn.Module) -> nn.LayerNorm:
        """Take torch's own class."""
        if not isinstance(original, nn.LayerNorm) or len(original.normalized_shape) != 1:
            raise NotProven("expected a LayerNorm over one axis")
        return original

    def build(self, parts: nn.LayerNorm) -> Iterator[LayerNormEval]:
        """Yield the norm with the same weight and bias."""
        weight = None if parts.weight is None else parts.weight.detach().clone()
        bias = None if parts.bias is None else parts.bias.detach().clone()
        yield LayerNormEval(weight, bias, parts.normalized_shape[0], parts.eps)

    def prove(self, original: nn.Module, built: LayerNormEval) -> float:
        """Compare inputs of several magnitudes: a small one reveals a wrong epsilon."""
        inputs = [torch.randn(BATCH, NEW, built.size) * scale for scale in (1e-3, 1.0, 30.0)]
        return max(compare(original(x), built(x), "norm output") for x in inputs)

    def report(
        self, findings: Findings, site: str, built: LayerNormEval, difference: float
    ) -> None:
        """Record the norm's node."""
        findings.replaced("npu_layer_norm_eval", difference)

"""The role of a norm that may subtract the mean first, in a model's own module, as Cohere's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..proof import Findings
from .norm import KeptNorm, NormParts, NormRole, RmsNorm


class CenteredNorm(RmsNorm):
    """LayerNorm without a bias as ``npu_layer_norm_eval``."""

    def _normed(self, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = torch.ops.npu.npu_layer_norm_eval(
            x, [gamma.shape[0]], gamma, None, self.epsilon
        )
        return normed


class CenteredNormRole(NormRole):
    """RMSNorm or a LayerNorm without a bias."""

    def build(self, parts: NormParts) -> Iterator[RmsNorm]:
        """Yield RMSNorm first, which most are."""
        yield from super().build(parts)
        yield CenteredNorm(parts.weight.clone(), parts.epsilon)

    def report(
        self, findings: Findings, site: str, built: RmsNorm | KeptNorm, difference: float
    ) -> None:
        """Record the norm's node."""
        if isinstance(built, CenteredNorm):
            findings.replaced("npu_layer_norm_eval", difference)
        else:
            super().report(findings, site, built, difference)

"""The role of a norm: RMSNorm, or the original."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ..proof import Findings, NotProven, compare
from .probes import BATCH, NEW
from .role import Role


class RmsNorm(nn.Module):
    """RMSNorm as ``npu_rms_norm``, or ``npu_add_rms_norm`` when a residual is added before it."""

    def __init__(self, gamma: torch.Tensor, epsilon: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(gamma, requires_grad=False)
        self.epsilon = epsilon
        # Whether a weight that stays float32 in any precision leaves the result as its input is.
        self.casts_back = False

    @property
    def weight(self) -> torch.Tensor:
        """The weight by the name of the originals: models read its dtype."""
        return self.gamma

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [.., H]; the result is of the weight's dtype, also for a float32 residual.

        It is of x's dtype if the original casts it back from that of a float32 weight.
        """
        gamma = self.gamma.to(x.dtype)
        exact = self.gamma.dtype == torch.float32
        dtype = x.dtype if exact and self.casts_back else self.gamma.dtype
        return self._normed(x, gamma).to(dtype)

    def _normed(self, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = torch.ops.npu.npu_rms_norm(x, gamma, self.epsilon)[0]
        return normed

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return norm(x + residual) and the sum, both of x's shape [.., H]."""
        normed, _, total = torch.ops.npu.npu_add_rms_norm(x, residual, self.gamma, self.epsilon)
        return normed, total


class KeptNorm(nn.Module):
    """A norm other than RMSNorm, kept unchanged."""

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.original = original

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x [.., H]."""
        return self.original(x)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return norm(x + residual) and the sum, both of x's shape [.., H]."""
        total = residual + x
        return self.original(total), total


class NormParts(NamedTuple):
    """The weight [H] of a norm and its epsilon."""

    weight: torch.Tensor
    epsilon: float


class NormRole(Role[NormParts, RmsNorm | KeptNorm]):
    """A norm of its input or, except for a decoder's first, of its input plus the residual."""

    def __init__(self, *, adds_residual: bool = True) -> None:
        self._operator = "npu_add_rms_norm" if adds_residual else "npu_rms_norm"

    def match(self, original: nn.Module) -> NormParts:
        """Find the weight and the epsilon, which has different names."""
        weight = getattr(original, "weight", None)
        names = [n for n in ("variance_epsilon", "eps") if hasattr(original, n)]
        epsilon = getattr(original, names[0]) if names else None
        if not isinstance(weight, torch.Tensor) or not isinstance(epsilon, float):
            raise NotProven(f"expected 'weight' and an epsilon in {type(original).__name__}")
        return NormParts(weight.detach(), epsilon)

    def build(self, parts: NormParts) -> Iterator[RmsNorm]:
        """Yield norms with the weight and, as stored by Gemma, with one plus the weight."""
        for gamma in (parts.weight.clone(), 1.0 + parts.weight):
            yield RmsNorm(gamma, parts.epsilon)

    def prove(self, original: nn.Module, built: RmsNorm | KeptNorm) -> float:
        """Compare inputs of several magnitudes: a small one reveals a wrong epsilon."""
        size = self.match(original).weight.shape[-1]
        inputs = [torch.randn(BATCH, NEW, size) * scale for scale in (1e-3, 1.0, 30.0)]
        difference = max(compare(original(x), built(x), "norm output") for x in inputs)
        if isinstance(built, RmsNorm):
            built.casts_back = original(inputs[0].bfloat16()).dtype == torch.bfloat16
        return difference

    def report(
        self, findings: Findings, site: str, built: RmsNorm | KeptNorm, difference: float
    ) -> None:
        """Record the norm's node."""
        findings.replaced(self._operator, difference)

    def keep(
        self, original: nn.Module, findings: Findings, site: str, reason: NotProven
    ) -> KeptNorm:
        """Return the original norm."""
        findings.keep(site, "norm", str(reason))
        return KeptNorm(copy.deepcopy(original))

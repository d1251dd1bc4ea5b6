"""The gated MLP of Gemma 3n, of whose activations only the largest few are kept."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import nn

from .linear import Projection


class SparseGatedMlp(nn.Module):
    """``down(gelu(relu(gate(x) - threshold)) * up(x))`` with one MatMul for gate and up.

    The threshold is that of a normal distribution with the mean and deviation of ``gate(x)``, which
    the share ``sparsity`` of its values is below.
    """

    operator = "npu_geglu"

    def __init__(self, gate_up: Projection, down: Projection, sparsity: float) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down
        self.deviations = NormalDist().inv_cdf(sparsity)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform x [B, S, H]."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        mean = gate.mean(-1, keepdim=True)
        deviation = (gate - mean).square().mean(-1, keepdim=True).sqrt()
        kept = nn.functional.relu(gate - (mean + deviation * self.deviations))
        gated, _ = torch.ops.npu.npu_geglu(torch.cat([kept, up], -1), -1, 1, activate_left=True)
        return self.down(gated)

"""The role of an MLP: gate and up projections, activation and down projection, or the original."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ..proof import Findings, NotProven, compare, spread_to
from .linear import Linear, Projection
from .probes import BATCH, NEW
from .role import Role, part
from .sparse_mlp import SparseGatedMlp


class GatedMlp(nn.Module):
    """``down(activation(gate(x)) * up(x))`` with one MatMul for gate and up, and a fused gate."""

    def __init__(self, gate_up: Projection, down: Projection, activation: str) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down
        self.activation = activation

    @property
    def operator(self) -> str:
        """The operator of the gate."""
        return "npu_swiglu" if self.activation == "silu" else "npu_geglu"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform x [B, S, H]."""
        hidden = self.gate_up(x)
        if self.activation == "silu":
            return self.down(torch.ops.npu.npu_swiglu(hidden, -1))
        approximate = int(self.activation == "gelu_tanh")
        gated, _ = torch.ops.npu.npu_geglu(hidden, -1, approximate, activate_left=True)
        return self.down(gated)


class MlpParts(NamedTuple):
    """The projections of an MLP; gate and up are joint or separate."""

    gate_up: tuple[nn.Linear, ...]
    down: nn.Linear
    sparsity: float = 0.0  # the share of activations that are dropped


# Deviations of what an MLP activates in proofs. Models clip it at 7 to 16.
SPREADS = (0.1, 3.0, 30.0)
# By their names in most models, in those of the LFM2 family, and in xLSTM: gate, up and down.
_NAMES = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("proj_up_gate", "proj_up", "proj_down"),
)


def is_mlp(module: nn.Module) -> bool:
    """Whether a module has the last projection of an MLP."""
    named = (all(hasattr(module, name) for name in names) for names in _NAMES[1:])
    return hasattr(module, "down_proj") or any(named)


class MlpRole(Role[MlpParts, nn.Module]):
    """An MLP that processes every token."""

    def match(self, original: nn.Module) -> MlpParts:
        """Find the projections."""
        names = next((each for each in _NAMES if hasattr(original, each[2])), _NAMES[0])
        down = part(original, "the MLP", names[2])
        joined = getattr(original, "gate_up_proj", None)
        if joined is not None:
            return MlpParts((joined,), down)
        gate_up = tuple(part(original, "the MLP", name) for name in names[:2])
        return MlpParts(gate_up, down, float(getattr(original, "activation_sparsity", 0.0)))

    def build(self, parts: MlpParts) -> Iterator[nn.Module]:
        """Yield the MLP with each activation."""
        gate_up, down = Linear.joined(*parts.gate_up), Linear.joined(parts.down)
        if 0 < parts.sparsity < 1:
            yield SparseGatedMlp(gate_up, down, parts.sparsity)
        for activation in ("silu", "gelu_tanh", "gelu"):
            yield GatedMlp(gate_up, down, activation)

    def close_to(self, built: nn.Module) -> Iterator[GatedMlp]:
        """Yield exact GELU for tanh's.

        They differ by about the tolerance, relative to the largest output.
        """
        if isinstance(built, GatedMlp) and built.activation == "gelu_tanh":
            yield GatedMlp(built.gate_up, built.down, "gelu")

    def prove(self, original: nn.Module, built: nn.Module) -> float:
        """Compare where the activation is nearly linear, where it is not, and where some clip."""
        gate_up = part(built, "the MLP", "gate_up")
        x = torch.randn(BATCH, NEW, gate_up.in_features)
        inputs = [spread_to(x, gate_up(x), spread) for spread in SPREADS]
        return max(compare(original(x), built(x), "MLP output") for x in inputs)

    def report(self, findings: Findings, site: str, built: nn.Module, difference: float) -> None:
        """Record the activation's node."""
        findings.replaced(part(built, "the MLP", "operator"), difference)

    def keep(
        self, original: nn.Module, findings: Findings, site: str, reason: NotProven
    ) -> nn.Module:
        """Return the original MLP."""
        findings.keep(site, "mlp", str(reason))
        return copy.deepcopy(original)

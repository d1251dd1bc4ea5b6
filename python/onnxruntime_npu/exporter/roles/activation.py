"""The role of an activation: a form of GELU that an operator computes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from ..proof import Findings, compare
from .role import Role


class Gelu(nn.Module):
    """GELU as ``npu_gelu``, by the error function or by tanh."""

    operator = "npu_gelu"

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform x of any shape."""
        return torch.ops.npu.npu_gelu(x, approximate=self.approximate)


class FastGelu(nn.Module):
    """``x * sigmoid(1.702 x)`` as ``npu_fast_gelu``."""

    operator = "npu_fast_gelu"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform x of any shape."""
        return torch.ops.npu.npu_fast_gelu(x)


def is_activation(module: nn.Module) -> bool:
    """Return whether a module is some GELU by its name, and holds nothing."""
    empty = not any(True for _ in module.parameters()) and not any(True for _ in module.buffers())
    return empty and "gelu" in type(module).__name__.lower()


class ActivationRole(Role[nn.Module, "Gelu | FastGelu"]):
    """An elementwise function."""

    def match(self, original: nn.Module) -> nn.Module:
        """Take the whole module: it has no parts."""
        return original

    def build(self, parts: nn.Module) -> Iterator[Gelu | FastGelu]:
        """Yield every form of GELU."""
        yield Gelu("none")
        yield Gelu("tanh")
        yield FastGelu()

    def prove(self, original: nn.Module, built: Gelu | FastGelu) -> float:
        """Compare small values, where the forms of GELU differ, and large ones, for clipping."""
        inputs = (torch.linspace(-8, 0, 2001), torch.linspace(0, 64, 2001))
        return max(compare(original(x), built(x), "activation") for x in inputs)

    def report(
        self, findings: Findings, site: str, built: Gelu | FastGelu, difference: float
    ) -> None:
        """Record the activation's node, one for each call."""
        findings.replaced(built.operator, difference)

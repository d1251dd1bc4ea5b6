"""The role of an MLP after a projection, a norm and an activation, as GLM-4V merges patches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ..proof import Findings, compare, spread_to
from .mlp import SPREADS, GatedMlp, MlpParts, MlpRole
from .probes import BATCH, NEW
from .role import Role, part

_NORM = "post_projection_norm"


class ProjectedMlp(nn.Module):
    """``mlp(activation(norm(proj(x))))``; all but the MLP are the original's, by their names."""

    def __init__(self, proj: nn.Module, norm: nn.Module, act1: nn.Module, mlp: GatedMlp) -> None:
        super().__init__()
        self.proj = proj
        self.post_projection_norm = norm
        self.act1 = act1
        self.mlp = mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform x [.., H]."""
        transformed: torch.Tensor = self.mlp(self.act1(self.post_projection_norm(self.proj(x))))
        return transformed


class ProjectedMlpParts(NamedTuple):
    """What comes before an MLP, and its projections."""

    proj: nn.Linear
    norm: nn.Module
    activation: nn.Module
    mlp: MlpParts


def is_projected_mlp(module: nn.Module) -> bool:
    """Whether a module has the last projection of an MLP, and a norm after a first projection."""
    return hasattr(module, "down_proj") and hasattr(module, _NORM)


class ProjectedMlpRole(Role[ProjectedMlpParts, ProjectedMlp]):
    """An MLP of features of patches."""

    def match(self, original: nn.Module) -> ProjectedMlpParts:
        """Find the parts."""
        proj, norm, act1 = (part(original, "the MLP", name) for name in ("proj", _NORM, "act1"))
        return ProjectedMlpParts(proj, norm, act1, MlpRole().match(original))

    def build(self, parts: ProjectedMlpParts) -> Iterator[ProjectedMlp]:
        """Yield the MLP with each activation of its gate."""
        for mlp in MlpRole().build(parts.mlp):
            if isinstance(mlp, GatedMlp):
                yield ProjectedMlp(parts.proj, parts.norm, parts.activation, mlp)

    def close_to(self, built: ProjectedMlp) -> Iterator[ProjectedMlp]:
        """Yield the MLP with gates that are like its own."""
        for mlp in MlpRole().close_to(built.mlp):
            yield ProjectedMlp(built.proj, built.post_projection_norm, built.act1, mlp)

    def prove(self, original: nn.Module, built: ProjectedMlp) -> float:
        """Compare the whole, and the MLP with gates of several sizes."""
        x = torch.randn(BATCH, NEW, part(built.proj, "the MLP", "in_features"))
        whole = compare(original(x), built(x), "MLP output")
        gate_up = built.mlp.gate_up
        normed = torch.randn(BATCH, NEW, gate_up.in_features)
        differences = [whole]
        for spread in SPREADS:
            given = spread_to(normed, gate_up(normed), spread)
            expected = _after(built.act1, given, original, x)
            differences.append(compare(expected, built.mlp(given), "MLP output"))
        return max(differences)

    def report(self, findings: Findings, site: str, built: ProjectedMlp, difference: float) -> None:
        """Record the node of the gate."""
        findings.replaced(built.mlp.operator, difference)


def _after(module: nn.Module, given: torch.Tensor, owner: nn.Module, x: torch.Tensor) -> Any:
    """Return ``owner(x)`` where the output of a module in it is ``given``."""
    hook = module.register_forward_hook(lambda *_: given)
    try:
        return owner(x)
    finally:
        hook.remove()

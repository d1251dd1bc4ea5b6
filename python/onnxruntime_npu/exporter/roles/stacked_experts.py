"""The role of DBRX's experts, whose weights lie below each other in matrices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..proof import Findings, NotProven, compare
from .experts import ExpertsParts, ExpertsRole, RoutedExperts, routed_experts, routed_tokens
from .mlp import SPREADS
from .probes import BATCH, NEW
from .role import Role

_MATRICES = ("w1", "v1", "w2")  # of the gate, the values and the way back


class StackedExperts(nn.Module):
    """Experts of tokens with a batch dimension, as DBRX's code calls them."""

    def __init__(self, experts: RoutedExperts) -> None:
        super().__init__()
        self.experts = experts

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Transform hidden_states [B, S, H] by experts [B * S, k] with weights [B * S, k]."""
        rows = self.experts(hidden_states.flatten(0, 1), top_k_index, top_k_weights)
        return rows.reshape(hidden_states.shape)


def is_stacked_experts(module: Any) -> bool:
    """Whether a module has matrices [experts * intermediate, H] of a gated MLP."""
    mlp = getattr(module, "mlp", None)
    weights = [getattr(mlp, name, None) for name in _MATRICES]
    return isinstance(getattr(module, "num_experts", None), int) and all(
        isinstance(weight, nn.Parameter) and weight.dim() == 2 for weight in weights
    )


class StackedExpertsRole(Role[ExpertsParts, StackedExperts]):
    """Experts that are [E * I, H] matrices, of which a router chooses a few for every token."""

    def match(self, original: Any) -> ExpertsParts:
        """Divide the matrices by experts."""
        shapes = {tuple(getattr(original.mlp, name).shape) for name in _MATRICES}
        if len(shapes) != 1 or next(iter(shapes))[0] % original.num_experts:
            raise NotProven(
                f"expected matrices of one shape, with rows for {original.num_experts} experts, "
                f"got {sorted(shapes)}"
            )
        gate, values, back = (
            getattr(original.mlp, name).detach().unflatten(0, (original.num_experts, -1))
            for name in _MATRICES
        )
        rest = nn.Module()
        rest.act_fn = original.mlp.activation_fn
        up = torch.cat([gate, values], dim=1).transpose(1, 2).contiguous()
        return ExpertsParts(up, back, None, None, rest)

    def build(self, parts: ExpertsParts) -> Iterator[StackedExperts]:
        """Yield the experts as grouped matmuls."""
        yield from map(StackedExperts, routed_experts(parts))

    def prove(self, original: Any, built: StackedExperts) -> float:
        """Compare with tokens that are routed to a random half of the experts."""
        differences = []
        for spread in SPREADS:
            x, *routed = routed_tokens(built.experts, spread)
            x = x.unflatten(0, (BATCH, NEW))
            differences.append(compare(original(x, *routed), built(x, *routed), "output"))
        return max(differences)

    def report(
        self, findings: Findings, site: str, built: StackedExperts, difference: float
    ) -> None:
        """Record the nodes of routing and of the grouped matmuls."""
        ExpertsRole().report(findings, site, built.experts, difference)

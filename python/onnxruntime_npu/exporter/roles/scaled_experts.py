"""The role of Llama 4's routed MLP, whose experts compute every token, scaled by its router.

A token that the router did not choose for an expert is scaled by 0, so that the expert adds nothing
to it. The chosen ones alone are computed here.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ...converters.quantized_experts import is_experts
from ..proof import Findings, NotProven, compare, spread_to
from .experts import ExpertsParts, ExpertsRole, RoutedExperts, parts_of, routed_experts
from .mlp import SPREADS
from .probes import BATCH, NEW
from .role import Role
from .router import is_router


class ScaledExperts(nn.Module):
    """Experts of tokens that are scaled by the sigmoid of the router's logits."""

    def __init__(self, original: Any, experts: RoutedExperts) -> None:
        super().__init__()
        # A copy: it is not replaced by itself, since its weights of experts are no results here.
        self.router = copy.deepcopy(original.router)
        self.experts = experts
        self.shared_expert = original.shared_expert

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Transform hidden_states [B, S, H] to [B * S, H]; return also the router's logits."""
        x = hidden_states.flatten(0, 1)
        _, logits = self.router(x)
        best, chosen = logits.topk(self.router.top_k, dim=-1)
        scales = best.float().sigmoid().to(x.dtype)
        scaled = (x[:, None] * scales[..., None]).flatten(0, 1)
        one = torch.ones_like(scales).reshape(-1, 1)
        rows = self.experts(scaled, chosen.reshape(-1, 1), one)
        routed = rows.unflatten(0, (-1, self.router.top_k)).sum(1)
        return self.shared_expert(x) + routed, logits


def is_scaled_experts(module: Any) -> bool:
    """Whether a module has experts that take tokens alone, a router and a shared expert."""
    experts = getattr(module, "experts", None)
    return (
        isinstance(experts, nn.Module)
        and is_experts(experts)
        and len(inspect.signature(experts.forward).parameters) == 1
        and is_router(getattr(module, "router", nn.Identity()))
        and hasattr(module, "shared_expert")
    )


class ScaledExpertsRole(Role[ExpertsParts, ScaledExperts]):
    """A routed MLP that scales the tokens of experts, not their results."""

    def __init__(self) -> None:
        self._original: Any = None

    def match(self, original: Any) -> ExpertsParts:
        """Find the weights of the experts, which multiply rows of tokens as they are."""
        self._original = original
        parts = parts_of(original.experts, transposed=True)
        if parts.up.shape[1] != parts.down.shape[2]:
            raise NotProven(
                f"expected weights [experts, in, out], got {list(parts.up.shape)} and "
                f"{list(parts.down.shape)}"
            )
        return parts

    def build(self, parts: ExpertsParts) -> Iterator[ScaledExperts]:
        """Yield the MLP with experts that compute what they are chosen for."""
        for experts in routed_experts(parts):
            yield ScaledExperts(self._original, experts)

    def prove(self, original: Any, built: ScaledExperts) -> float:
        """Compare results for tokens that choose different experts."""
        x = torch.randn(BATCH, NEW, built.experts.up.shape[1])
        projected = torch.matmul(x[0], built.experts.up)
        inputs = [spread_to(x, projected, spread) for spread in SPREADS]
        return max(compare(original(each)[0], built(each)[0], "output") for each in inputs)

    def report(
        self, findings: Findings, site: str, built: ScaledExperts, difference: float
    ) -> None:
        """Record the nodes of routing and of the grouped matmuls."""
        ExpertsRole().report(findings, f"{site}.experts", built.experts, difference)

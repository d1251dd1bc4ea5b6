"""The role of a routed MLP: its router is kept, its experts become one batched matmul."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from ..proof import Findings, NotProven, compare, spread_to
from .probes import BATCH, NEW
from .role import Role, part


class DenseExperts(nn.Module):
    """The experts of a routed MLP, each computed for every token and weighted by the router.

    Sorting tokens by expert needs data-dependent sizes, which a static graph cannot have; gathering
    weights per token would need memory in proportion to the length of the prompt.
    """

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor, activation: nn.Module) -> None:
        """Take gate_up [E, 2 I, H] and down [E, H, I] of E experts with inner size I."""
        super().__init__()
        self.gate_up, self.down = (
            nn.Parameter(w.transpose(1, 2).contiguous(), requires_grad=False)
            for w in (gate_up, down)
        )
        self.activation = activation

    def forward(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Transform x [tokens, H] by the experts [tokens, k] with weights [tokens, k]."""
        shares = torch.zeros(x.shape[0], self.down.shape[0], dtype=weights.dtype)
        # No expert is chosen twice, and onnxruntime's CPU provider cannot add float16 here.
        shares = shares.scatter(1, experts, weights).to(x.dtype)
        gate, up = torch.matmul(x, self.gate_up).chunk(2, dim=-1)
        y = torch.matmul(self.activation(gate) * up, self.down)
        return (y * shares.t()[..., None]).sum(0)


class RoutedMlp(NamedTuple):
    """A routed MLP and its experts' weights."""

    original: nn.Module
    experts: nn.Module
    gate_up: torch.Tensor
    down: torch.Tensor
    activation: nn.Module


class ExpertsRole(Role[RoutedMlp, nn.Module]):
    """An MLP of experts, of which a router chooses a few for every token."""

    def match(self, original: nn.Module) -> RoutedMlp:
        """Find the experts and their weights."""
        experts = part(original, "the MLP", "experts")
        return RoutedMlp(
            original,
            experts,
            gate_up=part(experts, "the experts", "gate_up_proj").detach(),
            down=part(experts, "the experts", "down_proj").detach(),
            activation=part(experts, "the experts", "act_fn"),
        )

    def build(self, parts: RoutedMlp) -> Iterator[nn.Module]:
        """Yield the routed MLP with its experts replaced."""
        dense = DenseExperts(parts.gate_up, parts.down, parts.activation)
        yield copy.deepcopy(parts.original, {id(parts.experts): dense})

    def prove(self, original: nn.Module, built: nn.Module) -> float:
        """Compare the experts, with tokens routed to a random half of them."""
        dense = part(built, "the MLP", "experts")
        count, size = dense.gate_up.shape[:2]
        x = torch.randn(BATCH * NEW, size)
        x = spread_to(x, torch.matmul(x, dense.gate_up), 2.0)
        chosen = torch.rand(len(x), count).argsort(dim=-1)[:, : max(1, count // 2)]
        weights = torch.rand(chosen.shape)
        experts = part(original, "the MLP", "experts")
        return compare(experts(x, chosen, weights), dense(x, chosen, weights), "output")

    def report(self, findings: Findings, site: str, built: nn.Module, difference: float) -> None:
        """Record that all experts are computed: no ``npu::`` operator takes a router's choice."""
        findings.keep(site, "mlp", "routed: every expert is computed for every token")

    def keep(
        self, original: nn.Module, findings: Findings, site: str, reason: NotProven
    ) -> nn.Module:
        """Raise: sorting tokens by expert cannot be traced."""
        raise NotProven(f"{site}.experts: {reason}") from reason

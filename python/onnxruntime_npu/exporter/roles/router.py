"""The role of a router: the best experts of each token, and their weights."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import nn

from ..proof import Findings, NotProven, compare, spread_to
from .role import Role

_TOKENS = 256  # of the proof
# Deviations of its logits: weights differ by much, or so little that any bias decides.
_SPREADS = (2.0, 0.05)
_SOFTMAX, _SIGMOID = 0, 1  # norm_type of npu_moe_gating_top_k
_BEST, _BEST_TWO = 0, 1  # its group_select_mode


class Groups(NamedTuple):
    """Experts are chosen from the best groups: of ``number`` groups ``kept``."""

    number: int
    kept: int


class FusedRouter(nn.Module, ABC):
    """Logits as the original computes them, and a fused choice of the best.

    The original's own choice is computed, too, but nothing uses it, so that it is not exported.
    """

    operator: str

    def __init__(self, original: nn.Module, top_k: int, *, normalised: bool, factor: float) -> None:
        """Take the original; ``normalised`` weights are divided by their sum, all multiplied."""
        super().__init__()
        self.original = original
        self.top_k, self.normalised, self.factor = top_k, normalised, factor

    @abstractmethod
    def chosen(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights and experts [T, k] of logits [T, E] in float32."""

    def forward(
        self, hidden_states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return logits [T, E], and weights and experts [T, k], the best first."""
        logits, weights, experts = self.original(hidden_states)
        fused, chosen = self.chosen(logits.float())
        if self.normalised:
            fused = fused / fused.sum(-1, keepdim=True)
        if self.factor != 1.0:
            fused = fused * self.factor
        return logits, fused.to(weights.dtype), chosen.to(experts.dtype)


class SoftmaxRouter(FusedRouter):
    """The greatest of a softmax."""

    operator = "npu_moe_gating_top_k_softmax"

    def chosen(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best k."""
        weights, experts, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(logits, k=self.top_k)
        return weights, experts


class GroupedRouter(FusedRouter):
    """The best of a softmax or of sigmoids, after a bias, from the best groups of experts."""

    operator = "npu_moe_gating_top_k"

    def __init__(
        self,
        original: nn.Module,
        top_k: int,
        groups: Groups,
        bias: str | None,
        *,
        norm_type: int,
        group_select_mode: int,
        normalised: bool,
        factor: float,
    ) -> None:
        """Take the name of the original's bias; the operator itself normalises sigmoids."""
        super().__init__(original, top_k, normalised=normalised, factor=factor)
        self.groups, self.bias = groups, bias
        self.norm_type, self.group_select_mode = norm_type, group_select_mode

    def chosen(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the best k of the best groups, which are those of the best expert, or two."""
        bias = None
        if self.bias is not None:
            bias = attrgetter(self.bias)(self.original).reshape(-1).float()
        weights, experts, _ = torch.ops.npu.npu_moe_gating_top_k(
            logits,
            self.top_k,
            bias=bias,
            k_group=self.groups.kept,
            group_count=self.groups.number,
            group_select_mode=self.group_select_mode,
            norm_type=self.norm_type,
        )
        return weights, experts


class SigmoidRouter(GroupedRouter):
    """The choice of the operator, with sigmoids that are not divided by their sum."""

    def chosen(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sigmoids of the best k."""
        _, experts = super().chosen(logits)
        return logits.sigmoid().gather(1, experts.long()), experts


class RouterParts(NamedTuple):
    """A router; its matrix [E, H], and the name of what is added to scores before the choice."""

    original: nn.Module
    weight: torch.Tensor
    bias: str | None
    groups: Groups
    factor: float


def is_router(module: nn.Module) -> bool:
    """Whether a module has one matrix, and a number of experts to choose."""
    return isinstance(getattr(module, "top_k", None), int) and len(_matrices(module)) == 1


def _matrices(module: nn.Module) -> list[torch.Tensor]:
    return [weight for weight in module.parameters() if weight.dim() > 1 and len(weight) > 1]


def _number(module: nn.Module, *names: str) -> Any:
    return next((found for name in names if (found := getattr(module, name, None))), 1)


class RouterRole(Role[RouterParts, FusedRouter]):
    """A router that returns logits, weights and experts, as most of transformers do."""

    def match(self, original: Any) -> RouterParts:
        """Find the matrix and the bias; take what the module returns from a call."""
        (weight,) = _matrices(original)
        experts, size = weight.shape
        results = original(torch.randn(2, size))
        wanted = [[2, experts], *[[2, original.top_k]] * 2]
        shapes = [list(each.shape) for each in results if isinstance(each, torch.Tensor)]
        if not isinstance(results, tuple) or shapes != wanted:
            raise NotProven(f"expected logits, weights and experts {wanted}, got {shapes}")
        tensors = itertools.chain(original.named_parameters(), original.named_buffers())
        biases = [
            name
            for name, tensor in tensors
            if tensor is not weight and name.rpartition(".")[2] != "bias"  # that of the logits
        ]
        if len(biases) > 1:
            raise NotProven(f"expected at most one bias of the choice, got {', '.join(biases)}")
        groups = Groups(_number(original, "num_group", "n_group"), _number(original, "topk_group"))
        factor = float(_number(original, "routed_scaling_factor"))
        return RouterParts(original, weight, biases[0] if biases else None, groups, factor)

    def build(self, parts: RouterParts) -> Iterator[FusedRouter]:
        """Yield softmaxes and sigmoids, with weights normalised or not, and choices by groups."""
        original: Any = parts.original
        top_k = int(original.top_k)
        factors = (1.0,) if parts.factor == 1.0 else (parts.factor, 1.0)
        plain = parts.bias is None
        for factor, normalised in itertools.product(factors, (True, False)):
            if plain:
                yield SoftmaxRouter(original, top_k, normalised=normalised, factor=factor)
        kinds = [
            (GroupedRouter, _SIGMOID, _BEST_TWO, False),
            (GroupedRouter, _SOFTMAX, _BEST, False),
            (GroupedRouter, _SOFTMAX, _BEST, True),
            (GroupedRouter, _SIGMOID, _BEST, False),
            (SigmoidRouter, _SIGMOID, _BEST_TWO, False),
            (SigmoidRouter, _SIGMOID, _BEST, False),
        ]
        if plain and parts.groups.number == 1:
            kinds = [kind for kind in kinds if kind[1:3] == (_SIGMOID, _BEST)]
        for factor, (kind, norm_type, mode, normalised) in itertools.product(factors, kinds):
            yield kind(
                original,
                top_k,
                parts.groups,
                parts.bias,
                norm_type=norm_type,
                group_select_mode=mode,
                normalised=normalised,
                factor=factor,
            )

    def prove(self, original: Any, built: FusedRouter) -> float:
        """Compare the weights of all experts, chosen or not."""
        (weight,) = _matrices(original)
        worst = 0.0
        for spread in _SPREADS:
            x = torch.randn(_TOKENS, weight.shape[1])
            x = spread_to(x, torch.matmul(x, weight.float().t()), spread)
            expected, actual = (_of_all_experts(*router(x)) for router in (original, built))
            worst = max(worst, compare(expected, actual, "weights of experts"))
        return worst

    def report(self, findings: Findings, site: str, built: FusedRouter, difference: float) -> None:
        """Record the node."""
        findings.replaced(built.operator, difference)


def _of_all_experts(
    logits: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor
) -> torch.Tensor:
    return torch.zeros_like(logits, dtype=weights.dtype).scatter(1, experts, weights)

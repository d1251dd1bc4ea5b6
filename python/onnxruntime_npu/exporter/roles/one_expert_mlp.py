"""The role of Switch Transformers' routed MLP: one expert for a token, and a limit for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..proof import Findings, NotProven, compare, spread_to
from .experts import ExpertsParts, ExpertsRole, RoutedExperts, routed_experts
from .mlp import SPREADS
from .probes import BATCH
from .role import Role

_FURTHER = 4  # tokens of a proof's rows beyond those that an expert takes


class OneExpertMlp(nn.Module):
    """``npu_moe_gating_top_k_softmax`` chooses the expert of a token.

    An expert takes the first ``capacity`` tokens of a row that choose it; it adds nothing to later
    ones.
    """

    operator = "npu_moe_gating_top_k_softmax"

    def __init__(self, router: Any, experts: RoutedExperts) -> None:
        super().__init__()
        # Parameters, not a layer: what routes is not quantised.
        self.weight = nn.Parameter(router.classifier.weight.detach(), requires_grad=False)
        bias = router.classifier.bias
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.capacity = int(router.expert_capacity)
        self.experts = experts

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Transform hidden_states [B, S, H]."""
        x = hidden_states.flatten(0, 1)
        bias = None if self.bias is None else self.bias.float()
        logits = nn.functional.linear(x.float(), self.weight.float(), bias)
        weights, chosen, _ = torch.ops.npu.npu_moe_gating_top_k_softmax(logits, k=1)
        choices = chosen.view(*hidden_states.shape[:2], 1) == torch.arange(self.experts.total)
        taken = choices & (choices.long().cumsum(1) <= self.capacity)
        weights = weights * taken.long().sum(-1).view(-1, 1)
        return self.experts(x, chosen, weights.to(x.dtype)).view(hidden_states.shape)


def is_one_expert_mlp(module: Any) -> bool:
    """Whether a module has experts that are modules by their names, and a router with a limit."""
    experts = getattr(module, "experts", None)
    return isinstance(experts, nn.ModuleDict) and hasattr(
        getattr(module, "router", None), "expert_capacity"
    )


class OneExpertMlpRole(Role[ExpertsParts, OneExpertMlp]):
    """A routed MLP whose experts are two linear layers, with an activation between them."""

    def __init__(self) -> None:
        self._router: Any = None

    def match(self, original: Any) -> ExpertsParts:
        """Join the layers of the experts."""
        check_experts(original)
        self._router = original.router
        layers = [
            [layer for layer in expert.modules() if isinstance(layer, nn.Linear)]
            for expert in _experts(original)
        ]
        if {len(each) for each in layers} != {2}:
            raise NotProven("expected experts of two linear layers")
        up, down = zip(*layers, strict=True)
        rest: Any = nn.Module()
        rest.has_gate = False
        rest.act_fn = _experts(original)[0].act
        return ExpertsParts(_weight(up), _weight(down), _bias(up), _bias(down), rest)

    def build(self, parts: ExpertsParts) -> Iterator[OneExpertMlp]:
        """Yield the MLP with experts as grouped matmuls."""
        for experts in routed_experts(parts):
            yield OneExpertMlp(self._router, experts)

    def prove(self, original: Any, built: OneExpertMlp) -> float:
        """Compare rows of different tokens, and of one token more often than an expert takes it."""
        up = built.experts.up
        different = torch.randn(BATCH, built.capacity + _FURTHER, up.shape[1])
        inputs = [different, different[:, :1].expand_as(different)]
        scaled = [spread_to(x, torch.matmul(x[0], up), s) for x in inputs for s in SPREADS]
        return max(compare(original(x), built(x), "output") for x in scaled)

    def report(self, findings: Findings, site: str, built: OneExpertMlp, difference: float) -> None:
        """Record the nodes of routing and of the grouped matmuls."""
        findings.replaced(built.operator, difference)
        ExpertsRole().report(findings, f"{site}.experts", built.experts, difference)


def check_experts(mlp: Any) -> None:
    """Raise NotProven for code that does not call the experts that its router chooses.

    That of NLLB-MoE in transformers 5.23 calls the first two for every token.
    """
    experts = _experts(mlp)
    x = torch.randn(16 * len(experts), mlp.router.classifier.in_features)
    chosen = set(mlp.router.classifier(x).argmax(-1).tolist())
    called = set[int]()
    hooks = [
        expert.register_forward_hook(lambda *_, number=i: called.add(number))
        for i, expert in enumerate(experts)
    ]
    try:
        mlp(x[None])
    finally:
        for hook in hooks:
            hook.remove()
    if not chosen <= called:
        raise NotProven(
            f"its code runs experts {', '.join(map(str, sorted(called)))} of {len(experts)}, "
            f"expected all {len(chosen)} that its router chooses: transformers has a defect here"
        )


def _experts(mlp: Any) -> list[Any]:
    return [module for name, module in mlp.experts.items() if name.startswith("expert_")]


def _weight(layers: tuple[nn.Linear, ...]) -> torch.Tensor:
    """Return [experts, in, out]."""
    return torch.stack([layer.weight.detach() for layer in layers]).transpose(1, 2).contiguous()


def _bias(layers: tuple[nn.Linear, ...]) -> torch.Tensor | None:
    found = [layer.bias.detach() for layer in layers if layer.bias is not None]
    return torch.stack(found) if found else None

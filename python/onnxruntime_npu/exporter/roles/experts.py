"""The role of a routed MLP's experts: tokens sorted by expert, and grouped matmuls."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from ...converters.quantized_experts import bias_of, first_name, is_experts, rows_of_experts
from ..integers.stored_experts import StoredExperts
from ..proof import Findings, NotProven, compare, spread_to
from .mlp import SPREADS, MlpRole, is_mlp
from .probes import BATCH, NEW
from .role import Role
from .router import RouterRole, is_router


class SwigluGate(nn.Module):
    """The gate of experts by one operator, in the place of their own module."""

    operator = "npu_swiglu"

    def _apply_gate(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.ops.npu.npu_swiglu(rows, -1)


class RoutedExperts(nn.Module):
    """Experts of which each token is computed by those that its router chose.

    ``npu_moe_init_routing_v2`` sorts the tokens by expert, ``_npu_grouped_matmul`` multiplies the
    rows of all experts in one call, and ``npu_moe_finalize_routing`` sums what belongs to a token.
    """

    def __init__(self, parts: ExpertsParts) -> None:
        super().__init__()
        self.rest = parts.rest  # the gate or the activation, without weights
        # Named as transformers names them, so that they can be quantised like others.
        self.has_gate = bool(getattr(parts.rest, "has_gate", True))
        self.has_bias = parts.up_bias is not None
        self.is_transposed = True
        self.up_name = "gate_up_proj" if self.has_gate else "up_proj"
        for name, tensor in (
            (self.up_name, parts.up),  # [E, H, I], or 2 I with a gate
            ("down_proj", parts.down),  # [E, I, H]
            (f"{self.up_name}_bias", parts.up_bias),
            ("down_proj_bias", parts.down_bias),
        ):
            found = None if tensor is None else nn.Parameter(tensor, requires_grad=False)
            self.register_parameter(name, found)
        self.total = len(parts.up)  # experts that a router chooses from
        self.stored = parts.stored
        self.own: list[int] = []  # those from the first to before the second; none: all

    @property
    def up(self) -> torch.Tensor:
        """The weights before the activation, [E, in, out]."""
        return self.get_parameter(self.up_name)

    @property
    def act_fn(self) -> Any:
        """The activation of experts without a gate, by the name that transformers has for it."""
        return self.rest.act_fn

    def part(self, own: range) -> RoutedExperts:
        """Return the block with some of the experts; tokens of others add nothing."""
        made = copy.copy(self)
        made._parameters = {
            name: None
            if weight is None
            else nn.Parameter(weight[own.start : own.stop], requires_grad=False)
            for name, weight in self._parameters.items()
        }
        made.own = [own.start, own.stop]
        return made

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Transform hidden_states [tokens, H] by experts [tokens, k] with weights [tokens, k]."""
        ops = torch.ops.npu
        rows, places, counts = rows_of_experts(hidden_states, top_k_index, self.total, self.own)
        rows = self._apply_gate(self._grouped(rows, self.up_name, counts))
        rows = self._grouped(rows, "down_proj", counts)
        weights = top_k_weights.to(rows.dtype)
        return ops.npu_moe_finalize_routing(
            rows, None, None, None, weights, places, None, drop_pad_mode=2
        )

    def _grouped(self, rows: torch.Tensor, name: str, counts: torch.Tensor) -> torch.Tensor:
        weight, bias = getattr(self, name), getattr(self, f"{name}_bias")
        return torch.ops.npu._npu_grouped_matmul(
            rows, weight, bias, group_list=counts, group_type=0, group_list_type=1
        )

    def _apply_gate(self, rows: torch.Tensor) -> torch.Tensor:
        rest: Any = self.rest
        if not self.has_gate:
            return rest.act_fn(rows)
        if hasattr(rest, "_apply_gate"):
            return rest._apply_gate(rows)
        gate, up = rows.chunk(2, dim=-1)
        return rest.act_fn(gate) * up


class ExpertsBesideIdentities(nn.Module):
    """Experts of which those behind the last return their tokens as they are, as in LongCat."""

    def __init__(self, experts: RoutedExperts, identities: int) -> None:
        super().__init__()
        self.experts = experts
        self.total = experts.total + identities

    @property
    def up(self) -> torch.Tensor:
        """The weights before the activation, [E, in, out]."""
        return self.experts.up

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Transform hidden_states [tokens, H] by experts [tokens, k] with weights [tokens, k]."""
        weighted = top_k_index < self.experts.total
        of_experts = torch.where(weighted, top_k_weights, 0.0)
        transformed = self.experts(hidden_states, torch.where(weighted, top_k_index, 0), of_experts)
        kept = (top_k_weights - of_experts).sum(-1, keepdim=True)
        return transformed + hidden_states * kept.to(hidden_states.dtype)


class ExpertsParts(NamedTuple):
    """The weights of experts as [E, in, out], their biases, and the module without them."""

    up: torch.Tensor
    down: torch.Tensor
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    rest: nn.Module
    stored: StoredExperts | None = None  # the integers of the checkpoint, if it has any
    identities: int = 0  # further experts, which return their tokens


class ExpertsRole(Role[ExpertsParts, RoutedExperts | ExpertsBesideIdentities]):
    """Experts, of which a router chooses a few for every token."""

    def match(self, original: nn.Module) -> ExpertsParts:
        """Find the weights of the experts."""
        if not is_experts(original):
            raise NotProven(
                f"expected 'gate_up_proj' and 'down_proj' of experts in {type(original).__name__}"
            )
        if getattr(original, "has_post_expert_norm", False):
            raise NotProven("expected experts without a norm of their own")
        return parts_of(original, transposed=getattr(original, "is_transposed", False))

    def build(self, parts: ExpertsParts) -> Iterator[RoutedExperts | ExpertsBesideIdentities]:
        """Yield the experts as grouped matmuls."""
        for routed in routed_experts(parts):
            yield ExpertsBesideIdentities(routed, parts.identities) if parts.identities else routed

    def prove(self, original: Any, built: RoutedExperts | ExpertsBesideIdentities) -> float:
        """Compare with tokens that are routed to a random half of the experts."""
        inputs = [routed_tokens(built, spread) for spread in SPREADS]
        return max(compare(original(*given), built(*given), "output") for given in inputs)

    def report(
        self,
        findings: Findings,
        site: str,
        built: RoutedExperts | ExpertsBesideIdentities,
        difference: float,
    ) -> None:
        """Record the nodes of routing and of the grouped matmuls."""
        findings.replaced("npu_moe_init_routing_v2", difference)
        findings.replaced("_npu_grouped_matmul", difference, nodes=2)
        findings.replaced("npu_moe_finalize_routing", difference)
        routed = built.experts if isinstance(built, ExpertsBesideIdentities) else built
        if isinstance(routed.rest, SwigluGate):
            findings.replaced(routed.rest.operator, difference)


def parts_of(original: Any, *, transposed: bool) -> ExpertsParts:
    """Return the parts of experts; ``transposed`` weights are [E, in, out], others [E, out, in]."""
    up, down = first_name(original), "down_proj"
    count = original.get_parameter(down).shape[0]
    has_identities = hasattr(original, "identity_expert")
    identities = int(getattr(original, "total_experts", count)) - count if has_identities else 0

    def weight(name: str) -> torch.Tensor:
        found = original.get_parameter(name).detach()[:count]  # others are of identities
        return found if transposed else found.transpose(1, 2).contiguous()

    without = {id(parameter): None for parameter in original.parameters()}
    rest = copy.deepcopy(original, without)
    biases = bias_of(original, up), bias_of(original, down)
    stored: StoredExperts | None = getattr(original, "stored", None)
    return ExpertsParts(weight(up), weight(down), *biases, rest, stored, identities)


def routed_experts(parts: ExpertsParts) -> Iterator[RoutedExperts]:
    """Yield experts whose gate is one operator, if they have a gate, then with their own."""
    if getattr(parts.rest, "has_gate", True):
        yield RoutedExperts(parts._replace(rest=SwigluGate()))
    yield RoutedExperts(parts)


def routed_tokens(
    experts: RoutedExperts | ExpertsBesideIdentities, spread: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens [BATCH * NEW, H], a random half of the experts for each, and their weights.

    ``spread``: the deviation of what the experts activate.
    """
    x = torch.randn(BATCH * NEW, experts.up.shape[1])
    x = spread_to(x, torch.matmul(x, experts.up), spread)
    chosen = torch.rand(len(x), experts.total).argsort(dim=-1)[:, : max(1, experts.total // 2)]
    return x, chosen, torch.rand(chosen.shape)


class RoutedMlpRole(Role[nn.Module, nn.Module]):
    """A routed MLP: experts are replaced, and the router and shared experts if they are proven."""

    def __init__(self) -> None:
        self._difference = 0.0
        # By the names of the routers and of the shared experts that were proven.
        self._roles: dict[str, Role[Any, Any]] = {}
        self._kept: dict[str, tuple[str, str]] = {}  # the others, with their role and why

    def match(self, original: nn.Module) -> nn.Module:
        """Find the experts."""
        return original

    def build(self, parts: nn.Module) -> Iterator[nn.Module]:
        """Yield the MLP with its experts replaced, its router and its shared experts."""
        experts: Any = parts.experts
        routed, self._difference = ExpertsRole().proven(experts)
        replaced: dict[int, nn.Module] = {id(experts): routed}
        for name, child in parts.named_children():
            role: Role[Any, Any]
            if is_router(child):
                # A copy: its weights will be converted, and the given model's are not.
                title, role, given = "router", RouterRole(), copy.deepcopy(child)
            elif child is not experts and is_mlp(child):
                title, role, given = "mlp", MlpRole(), child
            else:
                continue
            try:
                replaced[id(child)], found = role.proven(given)
            except NotProven as error:
                self._kept[name] = title, str(error)
                continue
            self._roles[name] = role
            self._difference = max(self._difference, found)
        yield copy.deepcopy(parts, replaced)

    def prove(self, original: nn.Module, built: nn.Module) -> float:
        """Compare through the router."""
        experts: Any = built.experts
        x = torch.randn(BATCH, NEW, experts.up.shape[1])
        expected, actual = (_tensor(mlp(x)) for mlp in (original, built))
        return max(self._difference, compare(expected, actual, "output"))

    def report(self, findings: Findings, site: str, built: nn.Module, difference: float) -> None:
        """Record the nodes of all experts and of the router."""
        experts: Any = built.experts
        ExpertsRole().report(findings, f"{site}.experts", experts, difference)
        for name, role in self._roles.items():
            role.report(findings, f"{site}.{name}", built.get_submodule(name), difference)
        for name, (title, why) in self._kept.items():
            findings.keep(f"{site}.{name}", title, why)

    def keep(
        self, original: nn.Module, findings: Findings, site: str, reason: NotProven
    ) -> nn.Module:
        """Raise: sorting tokens by expert as torch does it cannot be traced."""
        raise NotProven(f"{site}.experts: {reason}") from reason


def _tensor(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result

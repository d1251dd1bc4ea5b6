"""What takes the place of a block of experts: quantised weights, grouped matmuls and routing."""

from __future__ import annotations

import copy
from typing import Any

import torch

from .packing import packed_columns
from .quantized_linear import shifted_back
from .rounding import quantized_columns
from .schemes import Scheme


def is_experts(module: torch.nn.Module) -> bool:
    """Whether a module has the weights of experts as transformers stores them.

    That is ``down_proj`` and ``gate_up_proj``, or ``up_proj`` without a gate, [experts, ., .] each,
    for a call with tokens, the experts of each and their weights.
    """
    weights = [getattr(module, name, None) for name in (first_name(module), "down_proj")]
    return all(isinstance(w, torch.nn.Parameter) and w.dim() == 3 for w in weights)


def first_name(experts: torch.nn.Module) -> str:
    """Return the name of the weight before the activation."""
    return "gate_up_proj" if getattr(experts, "has_gate", True) else "up_proj"


def bias_of(experts: torch.nn.Module, name: str) -> torch.Tensor | None:
    """Return the biases of the layers that a weight belongs to, [experts, out], or None."""
    found: torch.Tensor | None = getattr(experts, f"{name}_bias", None)
    return None if found is None else found.detach()


class QuantizedExperts(torch.nn.Module):
    """A block of experts whose weights are integers; its gate or activation stays as it was.

    Every token is computed by the experts it is routed to: ``npu_moe_init_routing_v2`` sorts the
    tokens, ``npu_grouped_matmul`` multiplies the rows of all experts in one call, and
    ``npu_moe_finalize_routing`` adds up what belongs to a token. Integer activations have a scale
    per token, which ``npu_dynamic_quant`` computes.
    """

    def __init__(self, experts: torch.nn.Module, up: GroupedLinear, down: GroupedLinear) -> None:
        """Take float experts for their activation, and their quantised layers."""
        super().__init__()
        self.total = up.weight.shape[0]  # experts that a router chooses from
        self.own: list[int] = []  # those from the first to before the second; none: all
        self.up, self.down = up, down
        self.rest = _without_parameters(experts)

    @staticmethod
    def rounded(experts: torch.nn.Module, scheme: Scheme, group_size: int) -> QuantizedExperts:
        """Return the block with its weights rounded by a scheme."""

        def layer(name: str) -> GroupedLinear:
            weight = experts.get_parameter(name)
            scheme.check_dtype(weight.dtype)
            return GroupedLinear.rounded(
                weight if getattr(experts, "is_transposed", False) else weight.transpose(1, 2),
                bias_of(experts, name),
                scheme,
                group_size,
            )

        return QuantizedExperts(experts, layer(first_name(experts)), layer("down_proj"))

    @property
    def operators(self) -> dict[str, int]:
        """The operators of a call beside routing and grouped matmuls, and how many."""
        return {} if self.up.of_floats else {"npu_dynamic_quant": 2}

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return [tokens, H] for tokens [tokens, H] and experts and weights [tokens, k]."""
        ops, slots = torch.ops.npu, top_k_index.shape[1]
        rows, places, counts = rows_of_experts(hidden_states, top_k_index, self.total, self.own)
        rest: Any = self.rest
        rows = self.down(self._activated(self.up(rows, counts)), counts)
        if getattr(rest, "has_post_expert_norm", False):
            rows = rest.post_expert_norm(rows)
        weights = top_k_weights.to(rows.dtype)
        return ops.npu_moe_finalize_routing(
            rows, None, None, None, weights, places, None, 2, slots
        ).to(hidden_states.dtype)

    def part(self, own: range) -> QuantizedExperts:
        """Return the block with some of the experts; tokens of others add nothing."""
        made = copy.copy(self)
        made._modules = dict(self._modules)
        made.up, made.down = self.up.part(own), self.down.part(own)
        made.own = [own.start, own.stop]
        return made

    def _activated(self, rows: torch.Tensor) -> torch.Tensor:
        rest: Any = self.rest
        if not getattr(rest, "has_gate", True):
            return rest.act_fn(rows)
        if hasattr(rest, "_apply_gate"):
            return rest._apply_gate(rows)
        gate, up = rows.chunk(2, dim=-1)
        return rest.act_fn(gate) * up


def rows_of_experts(
    hidden_states: torch.Tensor, top_k_index: torch.Tensor, total: int, own: list[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the rows of hidden_states [tokens, H] by expert, their places, and how many each has.

    top_k_index [tokens, k]: the experts of a token, of ``total``; those outside of the range
    ``own`` get no rows.
    """
    rows, places, counts, _ = torch.ops.npu.npu_moe_init_routing_v2(
        hidden_states,
        top_k_index.to(torch.int32),
        expert_num=total,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=own,
    )
    return rows, places, counts


class GroupedLinear(torch.nn.Module):
    """A linear layer of every expert.

    Buffers: ``weight`` int8 [experts, in, out], or int4 packed in int32; ``scale``
    [experts, out], or [experts, groups, out]; ``offset`` of the same shape or None; ``bias``
    [experts, out]. ``of_floats``: floats are multiplied, else int8 activations with a scale per
    token.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self,
        weight: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        offset: torch.Tensor | None = None,
        of_floats: bool = True,
    ) -> None:
        super().__init__()
        self.of_floats = of_floats
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)
        self.register_buffer("bias", None if bias is None else bias.detach().float().clone())

    @staticmethod
    def rounded(
        weight: torch.Tensor, bias: torch.Tensor | None, scheme: Scheme, group_size: int
    ) -> GroupedLinear:
        """Return the layer of a float weight [experts, in, out], rounded by a scheme."""
        depth = weight.shape[1]
        group = group_size if scheme.grouped and depth % group_size == 0 else 0
        floats = scheme.activation == "float"
        scale_dtype = weight.dtype if floats else torch.float32
        parts = [
            quantized_columns(matrix.t(), scheme.weight_bits, group, scale_dtype)
            for matrix in weight
        ]
        integers = torch.stack([part[0] for part in parts])
        scales = torch.stack([part[1] for part in parts])
        if scheme.weight_bits == 4 and not floats:
            if bias is not None:
                raise ValueError(
                    f"[quantize_weights] expected experts without bias for {scheme.name}, got one; "
                    f"leave them out with skip=, or use w8a8_dynamic"
                )
            bias = shifted_back(integers, scales)
        return GroupedLinear(
            packed_columns(integers) if scheme.weight_bits == 4 else integers,
            scales if group else scales[:, 0],
            bias,
            of_floats=floats,
        )

    def part(self, own: range) -> GroupedLinear:
        """Return the layers of some experts."""
        made = copy.copy(self)
        made._buffers = {
            name: None if values is None else values[own.start : own.stop]
            for name, values in self._buffers.items()
        }
        return made

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Return rows [R, in], sorted by expert, times the weights of their experts."""
        given: dict[str, Any] = {
            "bias": None if self.bias is None else [self.bias],
            "group_list": counts,
            "group_list_type": 1,
            "group_type": 0,
            "split_item": 3,
        }
        if self.of_floats:
            offset = None if self.offset is None else [self.offset]
            return _grouped(
                [rows], [self.weight], antiquant_scale=[self.scale], antiquant_offset=offset,
                **given,
            )  # fmt: skip
        integers, scale = torch.ops.npu.npu_dynamic_quant(rows)
        return _grouped(
            [integers],
            [self.weight],
            scale=[self.scale],
            per_token_scale=[scale],
            output_dtype=rows.dtype,
            **given,
        )


def _grouped(rows: list[torch.Tensor], weights: list[torch.Tensor], **given: Any) -> torch.Tensor:
    (y,) = torch.ops.npu.npu_grouped_matmul(rows, weights, **given)
    return y


def _without_parameters(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy that keeps the gate, the activation and settings, but no weights."""
    rest = copy.copy(module)
    rest._parameters = {}
    return rest

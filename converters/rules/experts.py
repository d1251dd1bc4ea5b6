"""onnxruntime's MoE: the tokens of each expert are multiplied together."""

from __future__ import annotations

import functools
from abc import abstractmethod
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from .integers import Array
from .rule import Nodes, Rule, attribute, given, own_node, rank, require

_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64
# act_type of the grouped matmul. onnxruntime's GELU of experts is the one by tanh.
_ACTIVATIONS = {"identity": 0, "relu": 1, "gelu": 2, "silu": 5}
_INTERLEAVED = 1  # swiglu_fusion: gate and linear part take turns among the columns
_NEXT_TO_EACH_OTHER = 2  # drop_pad_mode of npu_moe_finalize_routing for the rows of a token
_UNLIMITED = float("inf")


class Layer(NamedTuple):
    """A matmul of each expert: where its weight is among the inputs, and what is done with it."""

    weight: int
    name: str  # of the attributes that concern it
    activation: int = 0  # act_type
    apart: bool = False  # columns of even numbers come first


class RoutedExperts(Rule):
    """A node of experts becomes gating, routing, two grouped matmuls and a weighted sum.

    Subclasses have the places of the inputs, 0 for one that the operator has not.
    """

    op_type: str
    layers: tuple[int, int]  # the weights
    bias: int  # how far behind its weight a layer's bias is
    third: int  # the weight of a third layer, which onnxruntime's CPU has not
    router_weights: int

    def pattern(self, op: Any, x: Any, logits: Any) -> Any:
        """Match one node."""
        return own_node(op, self.op_type, x, logits)

    @abstractmethod
    def check_node(self, node: ir.Node) -> None:
        """Raise Refused for what only this operator has."""

    @abstractmethod
    def row_type(self, dtype: ir.DataType) -> ir.DataType:
        """Return the type of the rows for that of the input."""

    @abstractmethod
    def weights(
        self, nodes: Nodes, node: ir.Node, layer: Layer, dtype: ir.DataType
    ) -> dict[str, ir.Value | None]:
        """Return a layer's weight [E, K, N] for rows of a type, as the grouped matmul takes it.

        Its arguments by name: the weight, and what makes integers floats.
        """

    def build(self, nodes: Nodes, x: ir.Value, logits: ir.Value, y: ir.Value) -> Any:
        """Add up what the k best experts make of each token."""
        node = y.producer()
        assert node is not None and x.dtype is not None
        require(rank(x) in (2, 3), "its input's rank is unknown")
        require(given(node, self.third) is None, "it has a third weight")
        require(not attribute(node, "use_sparse_mixer", 0), "its router is a sparse mixer")
        self.check_node(node)
        kind = attribute(node, "activation_type", "relu")
        gated = kind == "swiglu"
        require(gated or kind in _ACTIVATIONS, f"its activation is {kind}")
        interleaved = attribute(node, "swiglu_fusion", 0) == _INTERLEAVED
        require(interleaved or not gated, "its gate is not interleaved with the linear part")
        dtype = self.row_type(x.dtype)
        tokens = nodes.cast(x, dtype)
        if rank(x) == 3:
            tokens = nodes.onnx("Flatten", tokens, axis=2)
        weights, chosen = self._gating(nodes, node, logits)
        rows, places, counts, _ = nodes.npu(
            "npu_moe_init_routing_v2",
            tokens,
            chosen,
            expert_num=constant(node, self.layers[0]).shape[0],
            expert_tokens_num_type=1,
            expert_tokens_num_flag=1,
        )
        activation = 0 if gated else _ACTIVATIONS[kind]
        up = Layer(self.layers[0], "fc1", activation, apart=gated)
        rows = self._multiplied(nodes, node, rows, counts, up)
        if gated:
            rows = _gate(nodes, node, rows, constant(node, self.layers[0]).shape[1])
        rows = self._multiplied(nodes, node, rows, counts, Layer(self.layers[1], "fc2"))
        total = nodes.npu(
            "npu_moe_finalize_routing",
            rows,
            scales=weights,
            expanded_src_to_dst_row=places,
            drop_pad_mode=_NEXT_TO_EACH_OTHER,
        )[0]
        if rank(x) == 3:
            total = nodes.onnx("Reshape", total, nodes.onnx("Shape", x, dtype=_INT64))
        return nodes.cast(total, x.dtype)

    def _multiplied(
        self, nodes: Nodes, node: ir.Node, rows: ir.Value, counts: ir.Value, layer: Layer
    ) -> ir.Value:
        """Multiply rows [R, K], of which each expert has so many, by the experts' weights."""
        assert rows.dtype is not None
        return nodes.npu(
            "_npu_grouped_matmul",
            rows,
            **self.weights(nodes, node, layer, rows.dtype),
            bias=_bias(nodes, node, layer.weight + self.bias, layer),
            group_list=counts,
            group_type=0,
            group_list_type=1,
            act_type=layer.activation,
        )[0]

    def _gating(self, nodes: Nodes, node: ir.Node, logits: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return weights [T, k] in float32 and experts [T, k] of the k best of logits [T, E]."""
        weights, chosen, _ = nodes.npu(
            "npu_moe_gating_top_k_softmax", nodes.cast(logits, _FLOAT), k=attribute(node, "k", 1)
        )
        own = given(node, self.router_weights) if self.router_weights else None
        if own is not None:
            places = nodes.cast(chosen, _INT64)
            weights = nodes.onnx("GatherElements", nodes.cast(own, _FLOAT), places, axis=1)
        if attribute(node, "normalize_routing_weights", 0):
            weights = nodes.onnx("Div", weights, nodes.onnx("ReduceSum", weights, [1], keepdims=1))
        return weights, chosen


def constant(node: ir.Node, place: int) -> Any:
    """Return the tensor of an input that must be an initializer."""
    value = given(node, place)
    require(value is not None and value.const_value is not None, "its weight is no initializer")
    assert value is not None and value.const_value is not None
    return value.const_value


def _gate(nodes: Nodes, node: ir.Node, both: ir.Value, columns: int) -> ir.Value:
    """Return ``g * sigmoid(alpha * g) * (l + beta)`` of [R, 2 I], the g before the l."""
    alpha, beta = attribute(node, "activation_alpha", 1.0), attribute(node, "activation_beta", 0.0)
    limit = attribute(node, "swiglu_limit", _UNLIMITED)
    if alpha == 1.0 and beta == 0.0 and limit == _UNLIMITED:
        return nodes.npu("npu_swiglu", both, dim=-1)[0]
    assert both.dtype is not None
    number = functools.partial(nodes.constant, dtype=both.dtype)

    gate, linear = nodes.split(both, [columns // 2, columns // 2], axis=-1)
    if limit != _UNLIMITED:
        gate = nodes.onnx("Min", gate, number(limit))
        linear = nodes.onnx("Clip", linear, number(-limit), number(limit))
    activated = nodes.onnx(
        "Mul", gate, nodes.onnx("Sigmoid", nodes.onnx("Mul", gate, number(alpha)))
    )
    product: ir.Value = nodes.onnx("Mul", activated, nodes.onnx("Add", linear, number(beta)))
    return product


def columns_apart(values: Array, layer: Layer) -> Array:
    """Return [E, N, ..] with the columns of a layer in its order."""
    if not layer.apart:
        return values
    return np.concatenate([values[:, ::2], values[:, 1::2]], axis=1)


def _bias(nodes: Nodes, node: ir.Node, place: int, layer: Layer) -> ir.Value | None:
    """Return the bias [E, N] of a layer, if it has one."""
    bias = given(node, place)
    if bias is None or not layer.apart:
        return bias
    tensor = constant(node, place)
    return nodes.weight(
        ir.tensor(columns_apart(tensor.numpy(), layer), dtype=tensor.dtype), f"{bias.name}.apart"
    )


class MoE(RoutedExperts):
    """Experts with weights of floats."""

    op_type, layers, bias, third, router_weights = "MoE", (2, 4), 1, 6, 0

    def check_node(self, node: ir.Node) -> None:
        """Take every node."""

    def row_type(self, dtype: ir.DataType) -> ir.DataType:
        """Keep the type."""
        return dtype

    def weights(
        self, nodes: Nodes, node: ir.Node, layer: Layer, dtype: ir.DataType
    ) -> dict[str, ir.Value | None]:
        """Turn [E, N, K] into [E, K, N]."""
        tensor = constant(node, layer.weight)
        require(len(tensor.shape) == 3, "its weight is not one for each expert")
        experts, columns, depth = tensor.shape

        def turned() -> ir.Tensor:
            sorted_ = columns_apart(tensor.numpy(), layer)
            return ir.Tensor(np.ascontiguousarray(sorted_.swapaxes(1, 2)), dtype=tensor.dtype)

        weight = ir.LazyTensor(
            turned, dtype=tensor.dtype, shape=ir.Shape((experts, depth, columns))
        )
        name = f"{node.inputs[layer.weight].name}.grouped"  # type: ignore[union-attr]
        return {"weight": nodes.weight(weight, name)}


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [MoE()]

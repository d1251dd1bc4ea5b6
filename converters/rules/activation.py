"""Activations of onnxruntime, and gated MLPs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from .quantized_matmul import joined_blocks
from .rule import (
    MICROSOFT,
    Nodes,
    Refused,
    Rule,
    attribute,
    given,
    integers,
    operands,
    own_node,
    producer,
    rank,
    require,
    scalar,
)

_QUICK = 1.702  # alpha of the sigmoid that approximates GELU
_ROUNDING = 2e-3  # of a constant in bfloat16


class MicrosoftGelu(Rule):
    """onnxruntime's ``Gelu``, ``BiasGelu`` and ``FastGelu``, which is GELU by tanh."""

    def __init__(self, op_type: str, approximate: str) -> None:
        super().__init__(op_type)
        self._op_type, self._approximate = op_type, approximate

    def pattern(self, op: Any, x: Any) -> Any:
        """Match one node, with or without a bias."""
        return own_node(op, self._op_type, x)

    def build(self, nodes: Nodes, x: ir.Value, y: ir.Value) -> Any:
        """Add the bias, if any, and transform."""
        bias = given(y.producer(), 1)  # type: ignore[arg-type]
        summed = x if bias is None else nodes.onnx("Add", x, bias)
        return nodes.npu("npu_gelu", summed, approximate=self._approximate)[0]


class QuickGelu(Rule):
    """onnxruntime's ``QuickGelu`` with the factor of ``npu_fast_gelu``."""

    def pattern(self, op: Any, x: Any) -> Any:
        """Match one node."""
        return op.QuickGelu(x, _domain=MICROSOFT, _allow_other_attributes=True, _outputs=["y"])

    def build(self, nodes: Nodes, x: ir.Value, y: ir.Value) -> Any:
        """Transform."""
        alpha = attribute(y.producer(), "alpha", _QUICK)  # type: ignore[arg-type]
        require(abs(alpha - _QUICK) < 1e-6, f"its factor is {alpha:.4g}, not {_QUICK}")
        return nodes.npu("npu_fast_gelu", x)[0]


class WrittenOutGelu(Rule):
    """``x * 0.5 * (1 + erf(x / sqrt(2)))``, in any order of the factors."""

    def pattern(self, op: Any, left: Any, right: Any) -> Any:
        """Match the last multiplication."""
        return op.Mul(left, right, _outputs=["y"])

    def build(self, nodes: Nodes, y: ir.Value, **_: ir.Value) -> Any:
        """Transform the x of the error function if it is a factor, too."""
        factors = _factors(y)
        shifted = [x for factor in factors for x in [_before_shifted_erf(factor)] if x is not None]
        numbers = [number for factor in factors if (number := scalar(factor)) is not None]
        if len(factors) != 3 or len(shifted) != 1 or numbers != [0.5]:
            return None
        if not any(factor is shifted[0] for factor in factors):
            return None
        return nodes.npu("npu_gelu", shifted[0], approximate="none")[0]


def _factors(product: ir.Value) -> list[ir.Value]:
    """Return the three factors of a product of a product, or its two."""
    pairs = [*operands(product, "Mul")]
    for inner, outer in pairs:
        nested = [*operands(inner, "Mul")]
        if nested:
            return [*nested[0], outer]
    return [*pairs[0]] if pairs else []


def _before_shifted_erf(value: ir.Value) -> ir.Value | None:
    """Return the x of ``1 + erf(x / sqrt(2))``."""
    for part, one in operands(value, "Add"):
        erf = producer(part, "Erf")
        if erf is None or scalar(one) != 1.0:
            continue
        division = producer(erf.inputs[0], "Div")
        divisor = None if division is None else scalar(division.inputs[1])
        if division is not None and divisor is not None and abs(divisor - 2**0.5) < _ROUNDING:
            return division.inputs[0]
        for x, factor in operands(erf.inputs[0], "Mul"):
            number = scalar(factor)
            if number is not None and abs(number - 0.5**0.5) < _ROUNDING:
                return x
    return None


class GatedMlp(Rule):
    """``silu(x @ gate) * (x @ up)``: one matmul of the joined weights, and ``npu_swiglu``."""

    def pattern(self, op: Any, left: Any, right: Any) -> Any:
        """Match the multiplication by the gate."""
        return op.Mul(left, right, _outputs=["y"])

    def build(self, nodes: Nodes, y: ir.Value, **_: ir.Value) -> Any:
        """Join the products where both are of one input and of constant weights."""
        for activated, up in operands(y, "Mul"):
            gate = _before_silu(activated)
            if gate is None or gate is up:
                continue
            whole = _halves_of(gate, up)
            if whole is not None:
                return nodes.npu("npu_swiglu", whole, dim=-1)[0]
            for kind, domain, join in (
                ("MatMul", "", _joined),
                ("MatMulNBits", MICROSOFT, joined_blocks),
            ):
                first, second = producer(gate, kind, domain), producer(up, kind, domain)
                if first and second and first.inputs[0] is second.inputs[0]:
                    return nodes.npu("npu_swiglu", join(nodes, first, second), dim=-1)[0]
            raise Refused("its projections are no two matmuls of one input")
        return None


def _halves_of(gate: ir.Value, up: ir.Value) -> ir.Value | None:
    """Return the value of whose last axis the two are the halves, in this order."""
    split = producer(gate, "Split")
    if split is None or len(split.outputs) != 2 or list(split.outputs) != [gate, up]:
        return None
    whole, sizes = split.inputs[0], integers(given(split, 1))
    axis = attribute(split, "axis", 0)
    even = sizes is None or sizes[0] == sizes[1]
    last = whole is not None and axis in (-1, (rank(whole) or 0) - 1)
    return whole if even and last else None


def _before_silu(activated: ir.Value) -> ir.Value | None:
    """Return the x of ``silu(x)``, written out or one node."""
    for x, other in operands(activated, "Mul"):
        sigmoid = producer(other, "Sigmoid")
        if sigmoid is not None and sigmoid.inputs[0] is x:
            return x
    swish = producer(activated, "Swish") or producer(activated, "QuickGelu", MICROSOFT)
    if swish is None or attribute(swish, "alpha", 1.0 if swish.domain == "" else _QUICK) != 1.0:
        return None
    return swish.inputs[0]


def _joined(nodes: Nodes, first: ir.Node, second: ir.Node) -> ir.Value:
    x, gate, up = first.inputs[0], first.inputs[1], second.inputs[1]
    require(gate is not None and up is not None and x is not None, "its inputs are omitted")
    assert gate is not None and up is not None and x is not None
    require(gate.const_value is not None, "its weights are no initializers")
    require(up.const_value is not None, "its weights are no initializers")
    assert gate.const_value is not None and up.const_value is not None
    shapes = [tuple(tensor.shape) for tensor in (gate.const_value, up.const_value)]
    require(len(shapes[0]) == 2 and shapes[0] == shapes[1], "its weights' shapes differ")
    joined = _side_by_side(gate.const_value, up.const_value)
    product: ir.Value = nodes.onnx("MatMul", x, nodes.weight(joined, f"{gate.name}.gate_up"))
    return product


def _side_by_side(left: ir.TensorProtocol, right: ir.TensorProtocol) -> ir.LazyTensor:
    """Return [K, 2 N] of two tensors [K, N], made when it is written."""
    rows, columns = left.numpy().shape

    def join() -> ir.Tensor:
        return ir.Tensor(np.concatenate([left.numpy(), right.numpy()], axis=1), dtype=left.dtype)

    return ir.LazyTensor(join, dtype=left.dtype, shape=ir.Shape((rows, 2 * columns)))


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [
        MicrosoftGelu("Gelu", "none"),
        MicrosoftGelu("BiasGelu", "none"),
        MicrosoftGelu("FastGelu", "tanh"),
        QuickGelu(),
        WrittenOutGelu("GELU"),
        GatedMlp("gated MLP"),
    ]

"""RMS norms: of ONNX 23, of onnxruntime, and written out by an exporter."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .added_norm import AddedNorm
from .rule import (
    Nodes,
    Rule,
    attribute,
    given,
    integers,
    operands,
    producer,
    rank,
    require,
    scalar,
    static_size,
)


class StandardRmsNorm(Rule):
    """``RMSNormalization`` (ONNX 23), and onnxruntime's ``SimplifiedLayerNormalization``."""

    def __init__(self, op_type: str) -> None:
        super().__init__(op_type)
        self._op_type = op_type

    def pattern(self, op: Any, x: Any, gamma: Any) -> Any:
        """Match one node."""
        return getattr(op, self._op_type)(x, gamma, _outputs=["y"])

    def build(self, nodes: Nodes, x: ir.Value, gamma: ir.Value, y: ir.Value) -> Any:
        """Norm over the last axis."""
        node = y.producer()
        assert node is not None
        axis = attribute(node, "axis", -1)
        require(axis == -1 or axis + 1 == rank(x), "its norm spans several axes")
        require(attribute(node, "stash_type", 1) == 1, "its norm is not computed in float32")
        require(len(node.outputs) == 1, "its statistics are used")
        return _norm(nodes, x, gamma, attribute(node, "epsilon", 1e-5))


class SkipRmsNorm(AddedNorm):
    """A residual added before the norm: ``npu_add_rms_norm``, which does not broadcast."""

    def normed(
        self, nodes: Nodes, node: ir.Node, x: ir.Value, skip: ir.Value, gamma: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Add x and skip, by a node of its own where the skip may have fewer rows."""
        require(given(node, 3) is None, "it has a bias")
        epsilon = attribute(node, "epsilon", 1e-12)
        if _broadcasts(skip, x):
            skip = nodes.onnx("Expand", skip, nodes.onnx("Shape", x, dtype=ir.DataType.INT64))
        elif not _same_shapes(skip, x):
            total = nodes.onnx("Add", x, skip)
            return nodes.npu("npu_rms_norm", total, gamma, epsilon=epsilon)[0], total
        normed, _rstd, total = nodes.npu("npu_add_rms_norm", x, skip, gamma, epsilon=epsilon)
        return normed, total


def _broadcasts(skip: ir.Value, x: ir.Value) -> bool:
    """Return whether the file states that ``skip`` has fewer elements than x."""
    if skip.shape is None or x.shape is None:
        return False
    ones = [size == 1 != other for size, other in zip(skip.shape, x.shape, strict=False)]
    return len(skip.shape) < len(x.shape) or any(ones)


def _same_shapes(skip: ir.Value, x: ir.Value) -> bool:
    """Return whether the file states that both have the same sizes."""
    if skip is x:
        return True
    if skip.shape is None or x.shape is None or skip.shape != x.shape:
        return False
    return all(isinstance(size, int) or size.value is not None for size in x.shape)


class WrittenOutRmsNorm(Rule):
    """``gamma * (x / sqrt(mean(x ** 2) + epsilon))``, in float32 if x is of 16 bits."""

    def pattern(self, op: Any, left: Any, right: Any) -> Any:
        """Match the last multiplication."""
        return op.Mul(left, right, _outputs=["y"])

    def build(self, nodes: Nodes, y: ir.Value, **_: ir.Value) -> Any:
        """Norm over the last axis by a vector."""
        for gamma, normed in operands(y, "Mul"):
            parts = _parts(_before_cast(normed))
            if parts is None:
                continue
            wide, axes, epsilon = parts
            x = _before_cast(wide)
            over = integers(axes)
            last = (rank(x) or 0) - 1
            require(over == [-1] or over == [last], "its norm is not over the last axis")
            require(x.dtype is not None and x.dtype == gamma.dtype, "its weight has another type")
            value = scalar(epsilon)
            require(value is not None, "its epsilon is computed")
            return _norm(nodes, x, gamma, value)
        return None


def _before_cast(value: ir.Value) -> ir.Value:
    cast = producer(value, "Cast")
    source = None if cast is None else cast.inputs[0]
    return value if source is None else source


def _parts(normed: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Return (x, axes, epsilon) of ``x / sqrt(mean(x ** 2, axes) + epsilon)``."""
    divided = producer(normed, "Div")
    forms = [*operands(normed, "Mul")]
    if divided is not None:
        x, root = divided.inputs
        found = None if x is None else _root_of_mean_square(root, x)
        return None if found is None or x is None else (x, *found)
    for x, inverse in forms:
        reciprocal, one_over = producer(inverse, "Reciprocal"), producer(inverse, "Div")
        root = None
        if reciprocal is not None:
            root = reciprocal.inputs[0]
        elif one_over is not None and scalar(one_over.inputs[0]) == 1.0:
            root = one_over.inputs[1]
        found = _root_of_mean_square(root, x)
        if found is not None:
            return (x, *found)
    return None


def _root_of_mean_square(root: ir.Value | None, x: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return (axes, epsilon) of ``sqrt(mean(x ** 2, axes) + epsilon)``."""
    sqrt = producer(root, "Sqrt")
    for mean, epsilon in operands(None if sqrt is None else sqrt.inputs[0], "Add"):
        reduce = producer(mean, "ReduceMean")
        if reduce is None or attribute(reduce, "keepdims", 1) != 1:
            continue
        power, axes = producer(reduce.inputs[0], "Pow"), given(reduce, 1)
        squared = power is not None and power.inputs[0] is x and scalar(power.inputs[1]) == 2.0
        squared = squared or any(a is b is x for a, b in operands(reduce.inputs[0], "Mul"))
        if squared and axes is not None:
            return axes, epsilon
    return None


def _norm(nodes: Nodes, x: ir.Value, gamma: ir.Value, epsilon: float | None) -> ir.Value:
    require(rank(gamma) == 1, "its weight is no vector")
    require(static_size(gamma, 0) != 1 or static_size(x, -1) == 1, "its weight is one number")
    return nodes.npu("npu_rms_norm", x, gamma, epsilon=epsilon)[0]


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [
        StandardRmsNorm("RMSNormalization"),
        StandardRmsNorm("SimplifiedLayerNormalization"),
        *(SkipRmsNorm("SkipSimplifiedLayerNormalization", outputs) for outputs in (4, 1)),
        WrittenOutRmsNorm("RMSNorm"),
    ]

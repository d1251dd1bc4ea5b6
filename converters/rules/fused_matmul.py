"""onnxruntime's FusedMatMul, which transposes and scales, too; attention's rules look for those."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .rule import Nodes, Rule, attribute, own_node, rank, require


class FusedMatMul(Rule):
    """The transpositions of the last two axes, the product, and the factor."""

    def pattern(self, op: Any, a: Any, b: Any) -> Any:
        """Match one node."""
        return own_node(op, "FusedMatMul", a, b)

    def build(self, nodes: Nodes, a: ir.Value, b: ir.Value, y: ir.Value) -> Any:
        """Multiply, and scale the product."""
        node = y.producer()
        assert node is not None
        batches = [attribute(node, name, 0) for name in ("transBatchA", "transBatchB")]
        require(not any(batches), "it moves an axis of batches")
        require(a.dtype is not None, "its type is unknown")
        assert a.dtype is not None
        made = nodes.onnx(
            "MatMul",
            *(
                _transposed(nodes, x) if attribute(node, name, 0) and rank(x) != 1 else x
                for x, name in ((a, "transA"), (b, "transB"))
            ),
        )
        made.shape = y.shape
        alpha = attribute(node, "alpha", 1.0)
        return made if alpha == 1.0 else nodes.onnx("Mul", made, nodes.constant(alpha, a.dtype))


def _transposed(nodes: Nodes, x: ir.Value) -> ir.Value:
    axes = rank(x)
    require(axes is not None, "the rank of what it transposes is unknown")
    assert axes is not None
    made: ir.Value = nodes.onnx("Transpose", x, perm=[*range(axes - 2), axes - 1, axes - 2])
    if x.shape is not None:
        made.shape = ir.Shape([*x.shape[:-2], x.shape[-1], x.shape[-2]])
    return made

"""onnxruntime's norms of a sum, which are one node with the addition before them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import onnx_ir as ir

from .rule import Nodes, Rule, own_node, require


class AddedNorm(Rule):
    """A residual added before a norm; subclasses say what the node becomes."""

    def __init__(self, op_type: str, outputs: int) -> None:
        super().__init__(f"{op_type} of {outputs} outputs")
        self._op_type, self._outputs = op_type, outputs

    def pattern(self, op: Any, x: Any, skip: Any, gamma: Any) -> Any:
        """Match one node."""
        outputs = ["y", "mean", "deviation", "total"][: self._outputs]
        return own_node(op, self._op_type, x, skip, gamma, outputs=outputs)

    def build(
        self,
        nodes: Nodes,
        x: ir.Value,
        skip: ir.Value,
        gamma: ir.Value,
        y: ir.Value,
        **_: ir.Value,
    ) -> Any:
        """Add and norm; the sum is an output, too."""
        node = y.producer()
        assert node is not None
        if len(node.outputs) != self._outputs:
            return None
        require(not any(v.uses() for v in node.outputs[1:3]), "its statistics are used")
        normed, total = self.normed(nodes, node, x, skip, gamma)
        return [normed, total, total, total][: self._outputs]

    @abstractmethod
    def normed(
        self, nodes: Nodes, node: ir.Node, x: ir.Value, skip: ir.Value, gamma: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Return the norm of the sum, and the sum; ``node`` has what is optional."""

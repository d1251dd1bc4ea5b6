"""onnxruntime's SkipLayerNormalization; ONNX's own LayerNormalization stays."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .rule import MICROSOFT, Nodes, Rule, attribute, given, require

_BETA, _BIAS = 3, 4


class SkipLayerNorm(Rule):
    """A residual, and a bias, added before the norm: the additions and LayerNormalization."""

    def __init__(self, outputs: int) -> None:
        super().__init__(f"SkipLayerNormalization of {outputs} outputs")
        self._outputs = outputs

    def pattern(self, op: Any, x: Any, skip: Any, gamma: Any) -> Any:
        """Match one node."""
        return op.SkipLayerNormalization(
            x,
            skip,
            gamma,
            _domain=MICROSOFT,
            _allow_other_inputs=True,
            _allow_other_attributes=True,
            _outputs=["y", "mean", "deviation", "total"][: self._outputs],
        )

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
        total = nodes.onnx("Add", x, skip)
        if (bias := given(node, _BIAS)) is not None:
            total = nodes.onnx("Add", total, bias)
        beta = given(node, _BETA)
        normed = nodes.onnx(
            "LayerNormalization",
            *([total, gamma] if beta is None else [total, gamma, beta]),
            axis=-1,
            epsilon=attribute(node, "epsilon", 1e-12),
        )
        return [normed, total, total, total][: self._outputs]


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [SkipLayerNorm(outputs=1), SkipLayerNorm(outputs=4)]

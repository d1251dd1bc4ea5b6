"""onnxruntime's SkipLayerNormalization; ONNX's own LayerNormalization stays."""

from __future__ import annotations

import onnx_ir as ir

from .added_norm import AddedNorm
from .rule import Nodes, Rule, attribute, given

_BETA, _BIAS = 3, 4


class SkipLayerNorm(AddedNorm):
    """A residual, and a bias, added before the norm: the additions and LayerNormalization."""

    def normed(
        self, nodes: Nodes, node: ir.Node, x: ir.Value, skip: ir.Value, gamma: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Add x, skip and the bias if there is one; beta may be omitted."""
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
        return normed, total


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [SkipLayerNorm("SkipLayerNormalization", outputs) for outputs in (1, 4)]

"""onnxruntime's EmbedLayerNormalization, the first node of an encoder."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .rule import Nodes, Rule, attribute, given, own_node, require

_INT32 = ir.DataType.INT32
# Inputs by position: input_ids, segment_ids, word_embedding, position_embedding,
# segment_embedding, gamma, beta, mask, position_ids.
_WORDS, _PLACES, _SEGMENTS, _GAMMA, _BETA, _MASK, _AT = 2, 3, 4, 5, 6, 7, 8


class EmbedLayerNorm(Rule):
    """Rows of two or three tables, their sum, its norm, and how many keys of a row are seen."""

    def __init__(self, outputs: int) -> None:
        super().__init__(f"EmbedLayerNormalization of {outputs} outputs")
        self._outputs = outputs

    def pattern(self, op: Any, ids: Any) -> Any:
        """Match one node, with or without the sum, which it may omit."""
        outputs = ["y", "lengths", "total"][: self._outputs]
        return own_node(op, "EmbedLayerNormalization", ids, outputs=outputs)

    def build(self, nodes: Nodes, ids: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        """Return the norm [B, S, D], the lengths [B], and the sum."""
        node = y.producer()
        assert node is not None
        if len(node.outputs) != self._outputs:
            return None
        counted = node.outputs[1].uses() or node.outputs[1].is_graph_output()
        segments, mask, at = given(node, 1), given(node, _MASK), given(node, _AT)
        words, places, gamma = (given(node, i) for i in (_WORDS, _PLACES, _GAMMA))
        assert words is not None and places is not None and gamma is not None
        require(not counted or mask is not None, "its lengths are used, and it has no mask")
        total = nodes.onnx("Gather", words, ids, axis=0)
        if at is None:
            length = nodes.onnx("Squeeze", nodes.size(ids, 1), [0])
            zero, one = (nodes.constant(v) for v in (0, 1))
            at = nodes.onnx("Range", zero, length, one)
        total = nodes.onnx("Add", total, nodes.onnx("Gather", places, at, axis=0))
        if segments is not None:
            kinds = given(node, _SEGMENTS)
            total = nodes.onnx("Add", total, nodes.onnx("Gather", kinds, segments, axis=0))
        beta = given(node, _BETA)
        normed = nodes.onnx(
            "LayerNormalization",
            *([total, gamma] if beta is None else [total, gamma, beta]),
            axis=-1,
            epsilon=attribute(node, "epsilon", 1e-12),
        )
        normed.shape = total.shape = y.shape
        lengths = _lengths(nodes, mask) if counted else nodes.constant([0], _INT32)
        return [normed, lengths, total][: self._outputs]


def _lengths(nodes: Nodes, mask: ir.Value | None) -> ir.Value:
    """Return how many ones each row of a mask has."""
    one = nodes.constant(1, _INT32)
    ones = nodes.onnx("Equal", mask, one, dtype=ir.DataType.BOOL)
    counts: ir.Value = nodes.onnx("ReduceSum", nodes.cast(ones, _INT32), [1], keepdims=0)
    return counts


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [EmbedLayerNorm(outputs) for outputs in (3, 2)]

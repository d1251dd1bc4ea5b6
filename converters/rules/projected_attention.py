"""onnxruntime's Attention, which projects, caches and attends in one node."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .multi_head_attention import appended, attended, columns_of, heads_of
from .rule import Nodes, Rule, attribute, given, own_node, rank, require

# Inputs by position: input, weights, bias, mask_index, past, attention_bias; then that of a buffer.
_MASK, _PAST, _ADDED, _FIRST_UNKNOWN = 3, 4, 5, 6


class ProjectedAttention(Rule):
    """Queries, keys and values are one matmul's; past and present are [2, B, N, T, D]."""

    def __init__(self, outputs: int) -> None:
        super().__init__(f"Attention of {outputs} outputs")
        self._outputs = outputs

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        """Match one node, with or without the new cache."""
        return own_node(op, "Attention", x, weight, outputs=["y", "present"][: self._outputs])

    def build(self, nodes: Nodes, x: ir.Value, weight: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        """Return the attended values [B, S, N * D] and the cache."""
        node = y.producer()
        assert node is not None
        if len(node.outputs) != self._outputs:
            return None
        heads, bias, past = attribute(node, "num_heads", 0), given(node, 2), given(node, _PAST)
        require(heads > 0, "it does not tell its number of heads")
        require(not attribute(node, "do_rotary", 0), "it has do_rotary")
        extra = [i for i in range(_FIRST_UNKNOWN, len(node.inputs)) if given(node, i) is not None]
        shared = attribute(node, "past_present_share_buffer", 0)
        require(not extra and not shared, "its cache is a buffer")
        require(rank(x) == 3, "its input's rank is unknown")
        columns = columns_of(weight)
        sizes = list(attribute(node, "qkv_hidden_sizes", None) or [columns // 3] * 3)
        require(len(sizes) == 3 and sum(sizes) == columns, "its weight is not of three projections")
        projected = nodes.onnx("MatMul", x, weight)
        if bias is not None:
            projected = nodes.onnx("Add", projected, bias)
        parts = nodes.split(projected, sizes, axis=-1)
        for part, size in zip(parts, sizes, strict=True):
            part.shape = ir.Shape([*(x.shape or [None, None])[:2], size])
        queries, keys, values = (heads_of(nodes, part, heads) for part in parts)
        cached: list[ir.Value | None] = [None, None]
        if past is not None:
            cached = [nodes.onnx("Gather", past, nodes.constant(i), axis=0) for i in range(2)]
        keys, values = (appended(nodes, p, h) for p, h in zip(cached, (keys, values), strict=True))
        results = [
            attended(
                nodes, node, queries, keys, values, cached[0], given(node, _MASK),
                given(node, _ADDED), own=True,
            )
        ]  # fmt: skip
        if self._outputs > 1:
            pair = [nodes.onnx("Unsqueeze", h, [0]) for h in (keys, values)]
            results.append(nodes.onnx("Concat", *pair, axis=0))
        return results


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [ProjectedAttention(outputs) for outputs in (2, 1)]

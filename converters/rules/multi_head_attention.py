"""onnxruntime's MultiHeadAttention, over queries, keys and values with heads side by side."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .attention import attend, later_keys
from .rule import MICROSOFT, Nodes, Rule, attribute, given, rank, require, static_size

# Inputs by position: query, key, value, bias, key_padding_mask, attention_bias, then caches.
_BIAS, _PADDING, _ADDED, _FIRST_UNKNOWN = 3, 4, 5, 6


class MultiHeadAttention(Rule):
    """Without a cache: of queries [B, S, N * D], keys and values [B, T, N * D]."""

    def pattern(self, op: Any, query: Any) -> Any:
        """Match one node."""
        return op.MultiHeadAttention(
            query,
            _domain=MICROSOFT,
            _allow_other_inputs=True,
            _allow_other_attributes=True,
            _outputs=["y"],
        )

    def build(self, nodes: Nodes, query: ir.Value, y: ir.Value) -> Any:
        """Attend with the heads on an axis of their own."""
        node = y.producer()
        assert node is not None
        heads = attribute(node, "num_heads", 0)
        key, value, padding = given(node, 1), given(node, 2), given(node, _PADDING)
        require(heads > 0, "it does not tell its number of heads")
        require(key is not None and value is not None, "its projections are packed")
        assert key is not None and value is not None
        columns = [static_size(x, -1) for x in (query, key, value)]
        require(rank(query) == rank(key) == rank(value) == 3, "its projections are packed")
        require(None not in columns, "the size of its heads is unknown")
        extra = [i for i in range(_FIRST_UNKNOWN, len(node.inputs)) if given(node, i) is not None]
        require(not extra and len(node.outputs) == 1, "it has a cache")
        require(padding is None or rank(padding) == 2, "its padding is not told key by key")
        parts = [query, key, value]
        bias = given(node, _BIAS)
        if bias is not None:
            sizes = [size for size in columns if size is not None]
            pieces = nodes.split(bias, sizes, axis=0)
            parts = [nodes.onnx("Add", x, b) for x, b in zip(parts, pieces, strict=True)]
        queries, keys, values = (
            _apart(nodes, x, heads, size or 0) for x, size in zip(parts, columns, strict=True)
        )
        hidden = None
        if padding is not None:
            zero = nodes.constant(0, padding.dtype or ir.DataType.INT32)
            shown = nodes.onnx("Equal", padding, zero, dtype=ir.DataType.BOOL)
            hidden = nodes.onnx("Unsqueeze", shown, [1, 2])
            hidden.shape = ir.Shape([None, 1, 1, None])
        if attribute(node, "unidirectional", 0):
            require(padding is None, "it is causal and padded")
            hidden = later_keys(nodes, queries, keys)
        scale = attribute(node, "scale", 0.0) or None
        attended = attend(nodes, queries, keys, values, hidden, scale, given(node, _ADDED))
        joined = nodes.onnx("Transpose", attended, perm=[0, 2, 1, 3])
        return nodes.onnx("Reshape", joined, nodes.joined_sizes(0, 0, columns[2] or 0))


def _apart(nodes: Nodes, x: ir.Value, heads: int, columns: int) -> ir.Value:
    """Return [B, N, S, D] of [B, S, N * D]."""
    require(columns % heads == 0, "its heads are of several sizes")
    apart = nodes.onnx("Reshape", x, nodes.joined_sizes(0, 0, heads, columns // heads))
    made: ir.Value = nodes.onnx("Transpose", apart, perm=[0, 2, 1, 3])
    batch, length = (None, None) if x.shape is None else x.shape[:2]
    made.shape = ir.Shape([batch, heads, length, columns // heads])
    return made


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [MultiHeadAttention("MultiHeadAttention")]

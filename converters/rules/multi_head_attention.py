"""onnxruntime's MultiHeadAttention, over queries, keys and values with heads side by side."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .attention import FAR_BELOW, attend, later_keys
from .rule import Nodes, Rule, attribute, given, own_node, rank, require, static_size

_INT32, _BOOL = ir.DataType.INT32, ir.DataType.BOOL
# Inputs by position: query, key, value, bias, key_padding_mask, attention_bias, past_key,
# past_value; those after them belong to caches in buffers.
_BIAS, _PADDING, _ADDED, _PAST, _FIRST_UNKNOWN = 3, 4, 5, 6, 8


class MultiHeadAttention(Rule):
    """Of queries [B, S, N * D] over keys and values [B, T, N * D] behind those of a cache.

    Keys and values may also be heads [B, N, T, D], which an encoder's are.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__(f"MultiHeadAttention of {outputs} outputs")
        self._outputs = outputs

    def pattern(self, op: Any, query: Any) -> Any:
        """Match one node, with or without the new caches."""
        outputs = ["y", "present_key", "present_value"][: self._outputs]
        return own_node(op, "MultiHeadAttention", query, outputs=outputs)

    def build(self, nodes: Nodes, query: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        """Return the attended values [B, S, N * D] and the caches [B, N, T, D]."""
        node = y.producer()
        assert node is not None
        if len(node.outputs) != self._outputs:
            return None
        heads, key, value = attribute(node, "num_heads", 0), given(node, 1), given(node, 2)
        require(heads > 0, "it does not tell its number of heads")
        require(key is not None and value is not None, "its projections are packed")
        assert key is not None and value is not None
        extra = [i for i in range(_FIRST_UNKNOWN, len(node.inputs)) if given(node, i) is not None]
        require(not extra, "its cache is a buffer")
        past, bias = [given(node, _PAST + i) for i in range(2)], given(node, _BIAS)
        if rank(key) == rank(value) == 4:
            require(past == [None, None], "it has a cache beside heads")
            require(bias is None, "it has a bias beside heads")
            queries = heads_of(nodes, query, heads)
            # Under names of their own, for the new caches, if they are used, have other names.
            keys, values = (nodes.onnx("Identity", x) for x in (key, value))
            keys.shape, values.shape = key.shape, value.shape
        else:
            require(rank(query) == rank(key) == rank(value) == 3, "its projections are packed")
            parts = [query, key, value]
            if bias is not None:
                sizes = [columns_of(x) for x in parts]
                pieces = nodes.split(bias, sizes, axis=0)
                parts = [nodes.onnx("Add", x, b) for x, b in zip(parts, pieces, strict=True)]
                for part, before in zip(parts, (query, key, value), strict=True):
                    part.shape = before.shape
            queries, keys, values = (heads_of(nodes, x, heads) for x in parts)
        own = _as_many_rows(queries, keys)
        keys, values = (appended(nodes, p, x) for p, x in zip(past, (keys, values), strict=True))
        y_new = attended(
            nodes, node, queries, keys, values, past[0], given(node, _PADDING), given(node, _ADDED),
            own=own,
        )  # fmt: skip
        return [y_new, keys, values][: self._outputs]


def columns_of(x: ir.Value) -> int:
    """Return the size of the last axis, which heads share."""
    columns = static_size(x, -1)
    require(columns is not None, "the size of its heads is unknown")
    assert columns is not None
    return columns


def heads_of(nodes: Nodes, x: ir.Value, heads: int) -> ir.Value:
    """Return [B, N, S, D] of [B, S, N * D]."""
    columns = columns_of(x)
    require(columns % heads == 0, "its heads are of several sizes")
    apart = nodes.onnx("Reshape", x, nodes.joined_sizes(0, 0, heads, columns // heads))
    made: ir.Value = nodes.onnx("Transpose", apart, perm=[0, 2, 1, 3])
    batch, length = (None, None) if x.shape is None else x.shape[:2]
    made.shape = ir.Shape([batch, heads, length, columns // heads])
    return made


def appended(nodes: Nodes, past: ir.Value | None, new: ir.Value) -> ir.Value:
    """Return heads [B, N, P + S, D] of a cache [B, N, P, D] and of new tokens, if there is one."""
    if past is None:
        return new
    made: ir.Value = nodes.onnx("Concat", past, new, axis=2)
    if new.shape is not None:
        made.shape = ir.Shape([new.shape[0], new.shape[1], None, new.shape[3]])
    return made


def attended(
    nodes: Nodes,
    node: ir.Node,
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    past: ir.Value | None,
    padding: ir.Value | None,
    added: ir.Value | None,
    *,
    own: bool,
) -> ir.Value:
    """Return [B, S, N * D] of heads, by the attributes that onnxruntime's operators share.

    ``past`` is the part of the keys that was cached; ``padding`` [B, T] or [B, S, T] is 0 for keys
    that are not seen, or [B] how many of the first are; ``own`` says that each query has one of
    the keys that were not cached, as the file states.
    """
    if padding is not None and rank(padding) == 1:
        padding = _seen(nodes, padding, keys)
    require(padding is None or rank(padding) in (2, 3), "its padding is of an unknown form")
    hides = attribute(node, "mask_filter_value", FAR_BELOW) <= FAR_BELOW
    require(padding is None or hides, "its padding is seen a little")
    hidden = None
    if padding is not None:
        zero = nodes.constant(0, padding.dtype or _INT32)
        hidden = nodes.onnx("Equal", padding, zero, dtype=_BOOL)
        hidden = nodes.onnx("Unsqueeze", hidden, [1, 2] if rank(padding) == 2 else [1])
        hidden.shape = ir.Shape([None, 1, 1 if rank(padding) == 2 else None, None])
    causal = attribute(node, "unidirectional", 0)
    if causal and (later := _later(nodes, queries, keys, past, own=own)):
        if hidden is None:
            hidden = later
        else:
            hidden = nodes.onnx("Or", hidden, later, dtype=_BOOL)
            hidden.shape = ir.Shape([None, 1, None, None])
    scale = attribute(node, "scale", 0.0) or None
    heads = attend(nodes, queries, keys, values, hidden, scale, added)
    joined = nodes.onnx("Transpose", heads, perm=[0, 2, 1, 3])
    count, size = static_size(values, 1), static_size(values, 3)
    require(count is not None and size is not None, "the size of its heads is unknown")
    assert count is not None and size is not None
    made: ir.Value = nodes.onnx("Reshape", joined, nodes.joined_sizes(0, 0, count * size))
    return made


def _as_many_rows(queries: ir.Value, keys: ir.Value) -> bool:
    """Return whether the file states that there are as many keys as queries."""
    if queries.shape is None or keys.shape is None:
        return False
    size = queries.shape[2]
    return size == keys.shape[2] and (isinstance(size, int) or size.value is not None)


def _later(
    nodes: Nodes, queries: ir.Value, keys: ir.Value, past: ir.Value | None, *, own: bool
) -> ir.Value | None:
    """Return [S, T], which keys a causal row does not see, or None: the last row sees all."""
    if static_size(queries, 2) == 1:
        return None
    later = later_keys(nodes, queries, keys, past)
    if own:
        return later
    zero, one = (nodes.constant(v) for v in (0, 1))
    count = nodes.onnx("Squeeze", nodes.size(queries, 2), [0])
    rows = nodes.onnx("Unsqueeze", nodes.onnx("Range", zero, count, one), [1])
    early = nodes.onnx("Less", rows, nodes.onnx("Sub", count, one), dtype=_BOOL)
    later = nodes.onnx("And", later, early, dtype=_BOOL)
    later.shape = ir.Shape([None, None])
    return later


def _seen(nodes: Nodes, lengths: ir.Value, keys: ir.Value) -> ir.Value:
    """Return [B, T], which is 1 for the first keys of each row, of their numbers [B]."""
    rows = None if lengths.shape is None else lengths.shape[0]
    batch = None if keys.shape is None else keys.shape[0]
    known = isinstance(rows, int) or (rows is not None and rows.value is not None)
    require(known and rows == batch, "its padding is not told by the lengths of rows alone")
    zero, one = (nodes.constant(v) for v in (0, 1))
    count = nodes.onnx("Squeeze", nodes.size(keys, 2), [0])
    places = nodes.onnx("Unsqueeze", nodes.onnx("Range", zero, count, one), [0])
    held = nodes.onnx("Unsqueeze", nodes.cast(lengths, ir.DataType.INT64), [1])
    made = nodes.cast(nodes.onnx("Less", places, held, dtype=_BOOL), _INT32)
    made.shape = ir.Shape([batch, None])
    return made


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [MultiHeadAttention(outputs) for outputs in (3, 1)]

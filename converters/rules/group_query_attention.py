"""onnxruntime's GroupQueryAttention, which rotates, caches and attends in one node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from .rotary import rotate
from .rule import MICROSOFT, Nodes, Rule, attribute, given, require, static_size

_INT64 = ir.DataType.INT64
# Inputs by position: query, key, value, past_key, past_value, seqlens_k, total_sequence_length,
# cos_cache, sin_cache, position_ids; those after them change what is computed.
_POSITIONS, _FIRST_UNKNOWN = 9, 10
_UNKNOWN_ATTRIBUTES = ("smooth_softmax", "softcap", "qk_output", "k_quant_type", "v_quant_type")


@dataclass
class _Sizes:
    """Numbers of heads and their size."""

    heads: int
    kv_heads: int
    head: int


@dataclass
class _Places:
    """Where new tokens go: vectors of one and int64 tensors."""

    batch: ir.Value
    length: ir.Value  # of the new tokens
    total: ir.Value  # of the longest sequence
    tokens: ir.Value  # [B, S], the place of each new token in its sequence


class GroupQueryAttention(Rule):
    """The node becomes rotary embeddings, two cache updates and fused attention.

    As onnxruntime defines it, ``seqlens_k`` holds the lengths with the new tokens minus one, and
    the tokens of a row go behind its own past, so that rows of a batch may have other lengths.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__(f"GroupQueryAttention of {outputs} outputs")
        self._outputs = outputs

    def pattern(self, op: Any, query: Any) -> Any:
        """Match one node, with or without the new caches."""
        return op.GroupQueryAttention(
            query,
            _domain=MICROSOFT,
            _allow_other_inputs=True,
            _allow_other_attributes=True,
            _outputs=["y", "present_key", "present_value"][: self._outputs],
        )

    def build(self, nodes: Nodes, query: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        """Return the attended values [B, S, N * D] and the caches [B, Nkv, T, D]."""
        node = y.producer()
        assert node is not None
        if len(node.outputs) != self._outputs:
            return None
        for name in _UNKNOWN_ATTRIBUTES:
            require(attribute(node, name, 0) in (0, 0.0, -1, "NONE"), f"it has {name}")
        extra = [i for i in range(_FIRST_UNKNOWN, len(node.inputs)) if given(node, i) is not None]
        require(not extra, "it has a bias, sinks or quantised caches")
        sizes = _sizes(node, query)
        parts = _projections(nodes, node, query, sizes)
        places = _places(nodes, node, query)
        if attribute(node, "do_rotary", 0):
            parts = (*_rotated(nodes, node, parts, sizes, places), parts[2])
        heads, key, value = (nodes.onnx("Transpose", part, perm=[0, 2, 1, 3]) for part in parts)
        target = _target(nodes, places, sizes)
        keys = _cached(nodes, given(node, 3), key, target, places)
        values = _cached(nodes, given(node, 4), value, target, places)
        attended = nodes.npu(
            "npu_fused_infer_attention_score",
            heads,
            keys,
            values,
            atten_mask=_hidden(nodes, node, keys, places),
            num_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            scale=attribute(node, "scale", 0.0) or sizes.head**-0.5,
            input_layout="BNSD_BSND",
            sparse_mode=1,
        )[0]
        joined = nodes.onnx("Reshape", attended, nodes.joined_sizes(0, 0, sizes.heads * sizes.head))
        return [joined, keys, values][: self._outputs]


def _sizes(node: ir.Node, query: ir.Value) -> _Sizes:
    heads, kv_heads = (attribute(node, name, 0) for name in ("num_heads", "kv_num_heads"))
    require(heads and kv_heads, "it does not tell its numbers of heads")
    columns = static_size(query, -1)
    past = given(node, 3)
    head = None if past is None else static_size(past, 3)
    if head is None and columns is not None:
        head = columns // (heads + 2 * kv_heads if given(node, 1) is None else heads)
    require(head, "the size of its heads is unknown")
    assert head is not None
    return _Sizes(heads, kv_heads, head)


def _projections(
    nodes: Nodes, node: ir.Node, query: ir.Value, sizes: _Sizes
) -> tuple[ir.Value, ...]:
    """Return query, key and value as heads [B, S, N, D]."""
    counts = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    key, value = given(node, 1), given(node, 2)
    if key is None or value is None:
        ends = [sizes.head * sum(counts[: i + 1]) for i in range(3)]
        starts = [0, *ends[:2]]
        columns = [
            nodes.onnx("Slice", query, [start], [end], [2])
            for start, end in zip(starts, ends, strict=True)
        ]
    else:
        columns = [query, key, value]
    return tuple(
        nodes.onnx("Reshape", part, nodes.joined_sizes(0, 0, count, sizes.head))
        for part, count in zip(columns, counts, strict=True)
    )


def _places(nodes: Nodes, node: ir.Node, query: ir.Value) -> _Places:
    batch, length = nodes.size(query, 0), nodes.size(query, 1)
    lengths, total = given(node, 5), given(node, 6)
    require(lengths is not None and total is not None, "it has no lengths")
    assert lengths is not None and total is not None
    total = nodes.onnx("Reshape", nodes.cast(total, _INT64), nodes.constant([1]))
    ends = nodes.onnx("Reshape", nodes.cast(lengths, _INT64), nodes.constant([-1, 1]))
    behind = nodes.onnx("Sub", nodes.onnx("Add", ends, [1]), length)
    # A first prompt has no past, also where rows are padded at their ends.
    is_first = nodes.onnx("Equal", length, total, dtype=ir.DataType.BOOL)
    past = nodes.onnx("Where", is_first, nodes.constant([0]), behind, dtype=_INT64)
    return _Places(batch, length, total, nodes.onnx("Add", past, _range(nodes, length)))


def _range(nodes: Nodes, length: ir.Value) -> ir.Value:
    """Return 0 .. length - 1."""
    count = nodes.onnx("Squeeze", length, [0])
    made: ir.Value = nodes.onnx("Range", nodes.constant(0), count, nodes.constant(1))
    return made


def _rotated(
    nodes: Nodes, node: ir.Node, parts: tuple[ir.Value, ...], sizes: _Sizes, places: _Places
) -> tuple[ir.Value, ...]:
    cos, sin = given(node, 7), given(node, 8)
    require(cos is not None and sin is not None, "it has no tables of cos and sin")
    assert cos is not None and sin is not None
    half = static_size(cos, 1)
    require(half is not None, "the width of its tables is unknown")
    assert half is not None
    positions = given(node, _POSITIONS) or places.tokens
    interleaved = bool(attribute(node, "rotary_interleaved", 0))
    return tuple(
        rotate(nodes, part, cos, sin, positions, interleaved, 2 * half, sizes.head, heads=2)
        for part in parts[:2]
    )


def _target(nodes: Nodes, places: _Places, sizes: _Sizes) -> ir.Value:
    """Return the indices [B, Nkv, S, 3] of the new rows of a cache: batch, head, place."""
    grid = nodes.joined_sizes(places.batch, sizes.kv_heads, places.length, 1)
    batches = nodes.onnx("Unsqueeze", _range(nodes, places.batch), [1, 2, 3])
    heads = nodes.constant([[[[head]] for head in range(sizes.kv_heads)]])
    tokens = nodes.onnx("Unsqueeze", places.tokens, [1, 3])
    columns = [nodes.onnx("Expand", part, grid) for part in (batches, heads, tokens)]
    made: ir.Value = nodes.onnx("Concat", *columns, axis=-1)
    return made


def _cached(
    nodes: Nodes, past: ir.Value | None, new: ir.Value, target: ir.Value, places: _Places
) -> ir.Value:
    """Return the cache with the new rows, as long as the longest sequence or as the past."""
    if past is None:
        return new
    held = nodes.size(past, 2)
    grown = nodes.onnx("Sub", nodes.onnx("Max", places.total, held), held)
    pads = nodes.joined_sizes(0, 0, 0, 0, 0, 0, grown, 0)
    made: ir.Value = nodes.onnx("ScatterND", nodes.onnx("Pad", past, pads), target, new)
    if past.shape is not None:
        made.shape = ir.Shape([past.shape[0], past.shape[1], None, past.shape[3]])
    return made


def _hidden(nodes: Nodes, node: ir.Node, keys: ir.Value, places: _Places) -> ir.Value:
    """Return [B, 1, S, T], true where a key is after the query or outside its window."""
    held = nodes.onnx("Unsqueeze", _range(nodes, nodes.size(keys, 2)), [0, 1, 2])
    tokens = nodes.onnx("Unsqueeze", places.tokens, [1, 3])
    hidden: ir.Value = nodes.onnx("Greater", held, tokens, dtype=ir.DataType.BOOL)
    window = attribute(node, "local_window_size", -1)
    if window > 0:
        first = nodes.onnx("Sub", tokens, [window])
        beyond = nodes.onnx("LessOrEqual", held, first, dtype=ir.DataType.BOOL)
        hidden = nodes.onnx("Or", hidden, beyond)
    return hidden


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [GroupQueryAttention(outputs=3), GroupQueryAttention(outputs=1)]

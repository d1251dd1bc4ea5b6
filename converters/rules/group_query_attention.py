"""onnxruntime's GroupQueryAttention, which rotates, caches and attends in one node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from .rotary import rotate
from .rule import Nodes, Rule, attribute, given, own_node, require, static_size

_INT64, _BOOL = ir.DataType.INT64, ir.DataType.BOOL
# Inputs by position: query, key, value, past_key, past_value, seqlens_k, total_sequence_length,
# cos_cache, sin_cache, position_ids; those after them change what is computed.
_POSITIONS, _ADDED, _FIRST_UNKNOWN = 9, 10, 11
_UNKNOWN_ATTRIBUTES = (
    "smooth_softmax",
    "softcap",
    "qk_output",
    "k_quant_type",
    "v_quant_type",
    "sliding_window_cache",
)
_MASK_SIZE = 2048  # of the causal mask that sparse modes 2 to 4 take whatever the lengths are


@dataclass
class _Sizes:
    """Numbers of heads and their size."""

    heads: int
    kv_heads: int
    head: int


@dataclass
class _Places:
    """Where new tokens go. The values of one are vectors; none is read from a length's value."""

    batch: ir.Value  # [1]
    length: ir.Value  # [1], of the new tokens
    total: ir.Value  # [1], of the longest sequence
    past: ir.Value  # [B, 1], the tokens of each row before the new ones
    ends: ir.Value  # [B, 1], and with them
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
        outputs = ["y", "present_key", "present_value"][: self._outputs]
        return own_node(op, "GroupQueryAttention", query, outputs=outputs)

    def build(self, nodes: Nodes, query: ir.Value, y: ir.Value, **_: ir.Value) -> Any:
        """Return the attended values [B, S, N * D] and the caches [B, Nkv, T, D]."""
        node = y.producer()
        assert node is not None
        if len(node.outputs) != self._outputs:
            return None
        for name in _UNKNOWN_ATTRIBUTES:
            require(attribute(node, name, 0) in (0, 0.0, -1, "NONE"), f"it has {name}")
        require(attribute(node, "causal", 1) == 1, "it is not causal")
        extra = [i for i in range(_FIRST_UNKNOWN, len(node.inputs)) if given(node, i) is not None]
        require(not extra, "it has sinks or quantised caches")
        sizes = _sizes(node, query)
        places = _places(nodes, node, query)
        heads, key, value = _projections(nodes, node, query, sizes, places)
        target = _target(nodes, places, sizes)
        keys = _cached(nodes, given(node, 3), key, target, places)
        values = _cached(nodes, given(node, 4), value, target, places)
        attended = nodes.npu(
            "npu_fused_infer_attention_score",
            heads,
            keys,
            values,
            pse_shift=_shift(nodes, node, query, sizes, places),
            num_heads=sizes.heads,
            num_key_value_heads=sizes.kv_heads,
            scale=attribute(node, "scale", 0.0) or sizes.head**-0.5,
            input_layout="BNSD_BSND",
            **_visible(nodes, node, places),
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
    nodes: Nodes, node: ir.Node, query: ir.Value, sizes: _Sizes, places: _Places
) -> tuple[ir.Value, ...]:
    """Return query, key and value as rotated heads [B, N, S, D]."""

    def apart(columns: ir.Value, heads: int) -> ir.Value:
        shaped = nodes.onnx("Reshape", columns, nodes.joined_sizes(0, 0, heads, sizes.head))
        made: ir.Value = nodes.onnx("Transpose", shaped, perm=[0, 2, 1, 3])
        return made

    def turned(heads: ir.Value) -> ir.Value:
        return _rotated(nodes, node, heads, sizes, places)

    rotates = bool(attribute(node, "do_rotary", 0))
    counts = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    key, value = given(node, 1), given(node, 2)
    if key is not None and value is not None:
        parts = [apart(x, n) for x, n in zip((query, key, value), counts, strict=True)]
        return (*map(turned, parts[:2]), parts[2]) if rotates else tuple(parts)
    packed = apart(query, sum(counts))
    if not rotates:
        return nodes.split(packed, list(counts), axis=1)
    # Queries and keys in one rotation.
    both, values = nodes.split(packed, [counts[0] + counts[1], counts[2]], axis=1)
    return (*nodes.split(turned(both), list(counts[:2]), axis=1), values)


def _places(nodes: Nodes, node: ir.Node, query: ir.Value) -> _Places:
    batch, length = nodes.size(query, 0), nodes.size(query, 1)
    lengths, total = given(node, 5), given(node, 6)
    require(lengths is not None and total is not None, "it has no lengths")
    assert lengths is not None and total is not None
    total = nodes.onnx("Reshape", nodes.cast(total, _INT64), nodes.constant([1]))
    last = nodes.onnx("Reshape", nodes.cast(lengths, _INT64), nodes.constant([-1, 1]))
    steps = _range(nodes, length)
    # The last step counts the new tokens on the device, where the lengths are. A first prompt whose
    # rows are padded at their ends has more of them than the row holds.
    newest = nodes.onnx("ReduceMax", steps, [0], keepdims=1)
    past = nodes.onnx("Max", nodes.onnx("Sub", last, newest), [0])
    return _Places(
        batch, length, total, past, nodes.onnx("Add", last, [1]), nodes.onnx("Add", past, steps)
    )


def _range(nodes: Nodes, length: ir.Value) -> ir.Value:
    """Return 0 .. length - 1."""
    count = nodes.onnx("Squeeze", length, [0])
    made: ir.Value = nodes.onnx("Range", nodes.constant(0), count, nodes.constant(1))
    return made


def _rotated(
    nodes: Nodes, node: ir.Node, heads: ir.Value, sizes: _Sizes, places: _Places
) -> ir.Value:
    cos, sin = given(node, 7), given(node, 8)
    require(cos is not None and sin is not None, "it has no tables of cos and sin")
    assert cos is not None and sin is not None
    half = static_size(cos, 1)
    require(half is not None, "the width of its tables is unknown")
    assert half is not None
    positions = given(node, _POSITIONS) or places.tokens
    interleaved = bool(attribute(node, "rotary_interleaved", 0))
    return rotate(nodes, heads, cos, sin, positions, interleaved, 2 * half, sizes.head, heads=1)


def _target(nodes: Nodes, places: _Places, sizes: _Sizes) -> ir.Value:
    """Return the indices [B, Nkv, S, 3] of the new rows of a cache: batch, head, place."""
    grid = nodes.joined_sizes(places.batch, sizes.kv_heads, places.length, 1)
    batches = nodes.onnx("Unsqueeze", _range(nodes, places.batch), [1, 2, 3])
    heads = nodes.constant([[[[head]] for head in range(sizes.kv_heads)]])
    tokens = nodes.onnx("Unsqueeze", places.tokens, [1, 3])
    columns = [nodes.onnx("Expand", part, grid) for part in (batches, heads, tokens)]
    made: ir.Value = nodes.onnx("Concat", *columns, axis=-1)
    return made


def _held(nodes: Nodes, past: ir.Value | None, places: _Places) -> ir.Value:
    """Return [1], the number of rows of the new cache."""
    if past is None:
        return places.length
    made: ir.Value = nodes.onnx("Max", places.total, nodes.size(past, 2))
    return made


def _shift(
    nodes: Nodes, node: ir.Node, query: ir.Value, sizes: _Sizes, places: _Places
) -> ir.Value | None:
    """Return what is added to the scores, [B or 1, N, S, T], if anything is."""
    added = given(node, _ADDED)
    if added is None:
        return None
    assert query.dtype is not None
    # A cache may have more rows than its longest sequence; lengths hide those.
    held = _held(nodes, given(node, 3), places)
    missing = nodes.onnx("Sub", held, nodes.size(added, 3))
    pads = nodes.joined_sizes(0, 0, 0, 0, 0, 0, 0, missing)
    whole = nodes.onnx("Pad", nodes.cast(added, query.dtype), pads)
    grid = nodes.joined_sizes(1, sizes.heads, places.length, held)
    made: ir.Value = nodes.onnx("Expand", whole, grid)
    return made


def _cached(
    nodes: Nodes, past: ir.Value | None, new: ir.Value, target: ir.Value, places: _Places
) -> ir.Value:
    """Return the cache with the new rows, as long as the longest sequence or as the past."""
    if past is None:
        return new
    grown = nodes.onnx("Sub", _held(nodes, past, places), nodes.size(past, 2))
    pads = nodes.joined_sizes(0, 0, 0, 0, 0, 0, grown, 0)
    made: ir.Value = nodes.onnx("ScatterND", nodes.onnx("Pad", past, pads), target, new)
    if past.shape is not None:
        made.shape = ir.Shape([past.shape[0], past.shape[1], None, past.shape[3]])
    return made


def _visible(nodes: Nodes, node: ir.Node, places: _Places) -> dict[str, Any]:
    """Return the arguments that hide what is after a query or outside its window."""
    window = attribute(node, "local_window_size", -1)
    past = given(node, 3)
    if window <= 0:
        # No mask of the scores: rows tell their lengths.
        later = nodes.shared_weight(
            f"later_keys_{_MASK_SIZE}",
            lambda: ir.tensor(np.triu(np.ones((_MASK_SIZE, _MASK_SIZE), np.bool_), 1)),
        )
        new = nodes.onnx("Sub", places.ends, places.past)
        lengths = [nodes.onnx("Reshape", n, nodes.constant([-1])) for n in (new, places.ends)]
        return {
            "atten_mask": later,
            "sparse_mode": 3,
            "actual_seq_lengths": lengths[0],
            "actual_seq_lengths_kv": lengths[1],
        }
    # The operator's own windows do not apply to a single query.
    keys = nodes.onnx("Unsqueeze", _range(nodes, _held(nodes, past, places)), [0, 1, 2])
    tokens = nodes.onnx("Unsqueeze", places.tokens, [1, 3])
    later = nodes.onnx("Greater", keys, tokens, dtype=_BOOL)
    first = nodes.onnx("Sub", tokens, [window])
    beyond = nodes.onnx("LessOrEqual", keys, first, dtype=_BOOL)
    return {"atten_mask": nodes.onnx("Or", later, beyond), "sparse_mode": 1}


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [GroupQueryAttention(outputs=3), GroupQueryAttention(outputs=1)]

"""Rotary embeddings: of ONNX 23, of onnxruntime, and written out by an exporter."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .rule import (
    MICROSOFT,
    Nodes,
    Rule,
    attribute,
    given,
    integers,
    operands,
    producer,
    rank,
    require,
    static_size,
)

_TO_THE_END = 2**31 - 1  # a slice's end beyond any axis


class StandardRotary(Rule):
    """``RotaryEmbedding`` of ONNX 23: cos and sin of half the width, or indexed by positions."""

    def pattern(self, op: Any, x: Any, cos: Any, sin: Any) -> Any:
        """Match one node."""
        return op.RotaryEmbedding(x, cos, sin, _allow_other_inputs=True, _outputs=["y"])

    def build(self, nodes: Nodes, x: ir.Value, cos: ir.Value, sin: ir.Value, y: ir.Value) -> Any:
        """Rotate heads [B, N, S, D], or [B, S, N * D]."""
        node = y.producer()
        assert node is not None
        return rotated_node(nodes, node, x, cos, sin, given(node, 3))


class MicrosoftRotary(Rule):
    """``RotaryEmbedding`` of onnxruntime: tables indexed by positions."""

    def pattern(self, op: Any, x: Any, positions: Any, cos: Any, sin: Any) -> Any:
        """Match one node."""
        return op.RotaryEmbedding(x, positions, cos, sin, _domain=MICROSOFT, _outputs=["y"])

    def build(
        self,
        nodes: Nodes,
        x: ir.Value,
        positions: ir.Value,
        cos: ir.Value,
        sin: ir.Value,
        y: ir.Value,
    ) -> Any:
        """Rotate heads [B, N, S, D], or [B, S, N * D]."""
        node = y.producer()
        assert node is not None
        for name in ("is_packed_batching", "scale"):
            require(attribute(node, name, 0) in (0, 1.0), f"it has {name}")
        require(rank(positions) == 2, "its positions are offsets")
        return rotated_node(nodes, node, x, cos, sin, positions)


def rotated_node(
    nodes: Nodes,
    node: ir.Node,
    x: ir.Value,
    cos: ir.Value,
    sin: ir.Value,
    positions: ir.Value | None,
) -> ir.Value:
    """Return what a RotaryEmbedding node computes."""
    interleaved = bool(attribute(node, "interleaved", 0))
    width = attribute(node, "rotary_embedding_dim", 0)
    if rank(x) == 3:
        heads = attribute(node, "num_heads", 0)
        require(heads, "it does not tell the number of heads")
        apart = nodes.onnx("Reshape", x, nodes.joined_sizes(0, 0, heads, -1))
        size = static_size(x, -1)
        head_size = None if size is None else size // heads
        rotated = rotate(nodes, apart, cos, sin, positions, interleaved, width, head_size, heads=2)
        return nodes.onnx("Reshape", rotated, nodes.onnx("Shape", x, dtype=ir.DataType.INT64))
    require(rank(x) == 4, "its input's rank is unknown")
    return rotate(nodes, x, cos, sin, positions, interleaved, width, static_size(x, -1), heads=1)


def rotate(
    nodes: Nodes,
    x: ir.Value,
    cos: ir.Value,
    sin: ir.Value,
    positions: ir.Value | None,
    interleaved: bool,
    width: int,
    head_size: int | None,
    heads: int,
) -> ir.Value:
    """Rotate x of rank 4 whose heads are on axis ``heads``.

    cos and sin are [M, W / 2] tables for positions [B, S], or [B, S, W / 2] without; W is ``width``
    or, if that is 0, the head's size.
    """
    if positions is not None:
        cos, sin = (
            nodes.onnx("Gather", table, nodes.cast(positions, ir.DataType.INT64), axis=0)
            for table in (cos, sin)
        )
    tables = []
    for table in (cos, sin):
        full = _widened(nodes, table, interleaved)
        tables.append(nodes.onnx("Unsqueeze", full, [heads]))
    mode = "interleave" if interleaved else "half"
    partial = width and width != head_size
    if not partial:
        return nodes.npu("npu_rotary_mul", x, *tables, rotary_mode=mode)[0]
    first = nodes.onnx("Slice", x, [0], [width], [3])
    rest = nodes.onnx("Slice", x, [width], [_TO_THE_END], [3])
    turned = nodes.npu("npu_rotary_mul", first, *tables, rotary_mode=mode)[0]
    return nodes.onnx("Concat", turned, rest, axis=-1)


def _widened(nodes: Nodes, table: ir.Value, interleaved: bool) -> ir.Value:
    """Return a table [.., W / 2] with a value for every element of a head."""
    if not interleaved:
        return nodes.onnx("Concat", table, table, axis=-1)
    pairs = nodes.onnx("Unsqueeze", table, [-1])
    doubled = nodes.onnx("Concat", pairs, pairs, axis=-1)
    return nodes.onnx("Reshape", doubled, nodes.joined_sizes(0, 0, -1))


class WrittenOutRotary(Rule):
    """``x * cos + concat(-second half, first half) * sin``."""

    def pattern(self, op: Any, left: Any, right: Any) -> Any:
        """Match the sum."""
        return op.Add(left, right, _outputs=["y"])

    def build(self, nodes: Nodes, y: ir.Value, **_: ir.Value) -> Any:
        """Rotate x where both halves are its own and the tables broadcast to it."""
        for left, right in operands(y, "Add"):
            for turned, sin in operands(right, "Mul"):
                halves = _negated_and_plain(turned)
                if halves is None:
                    continue
                for x, cos in operands(left, "Mul"):
                    if _turns(x, *halves):
                        return _rotated(nodes, x, cos, sin)
        return None


def _negated_and_plain(turned: ir.Value) -> tuple[ir.Value, ir.Value, int] | None:
    """Return (second half, first half, axis) of ``concat(-second, first)``."""
    concat = producer(turned, "Concat")
    if concat is None or len(concat.inputs) != 2:
        return None
    negated = producer(concat.inputs[0], "Neg")
    second, first = None if negated is None else negated.inputs[0], concat.inputs[1]
    if second is None or first is None:
        return None
    return second, first, attribute(concat, "axis", 0)


def _turns(x: ir.Value, second: ir.Value, first: ir.Value, axis: int) -> bool:
    """Return whether the halves are those of the last axis of x."""
    size, axes = static_size(x, -1), rank(x)
    if size is None or axes is None or size % 2 or axis not in (-1, axes - 1):
        return False
    return _is_part(first, x, 0, size // 2) and _is_part(second, x, size // 2, size)


def _rotated(nodes: Nodes, x: ir.Value, cos: ir.Value, sin: ir.Value) -> ir.Value:
    for table in (cos, sin):
        require(rank(table) == rank(x), "its table has another rank")
        require(static_size(table, -1) in (1, static_size(x, -1)), "its table's width is unknown")
        require(table.dtype == x.dtype, "its table has another type")
    return nodes.npu("npu_rotary_mul", x, cos, sin)[0]


def _is_part(part: ir.Value, whole: ir.Value, begin: int, end: int) -> bool:
    """Return whether a value is ``whole[..., begin:end]`` of an axis of ``end`` or twice it."""
    size = static_size(whole, -1)
    last = (rank(whole) or 0) - 1
    if (node := producer(part, "Slice")) is not None:
        starts, ends, axes, steps = (integers(given(node, i)) for i in (1, 2, 3, 4))
        if node.inputs[0] is not whole or axes not in ([-1], [last]) or steps not in (None, [1]):
            return False
        reaches = ends is not None and (ends[0] == end or (end == size and ends[0] >= end))
        return starts == [begin] and reaches
    if (node := producer(part, "Split")) is not None:
        halves = node.inputs[0] is whole and len(node.outputs) == 2
        sizes = integers(given(node, 1))
        even = sizes is None or (len(sizes) == 2 and sizes[0] == sizes[1])
        on_last = attribute(node, "axis", 0) in (-1, last)
        return bool(halves and even and on_last and node.outputs[0 if begin == 0 else 1] is part)
    return False


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [StandardRotary(), MicrosoftRotary(), WrittenOutRotary("rotary embedding")]

"""onnxruntime's GatherBlockQuantized: rows of a table of 4 or 8 bits, as embeddings have it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from .rule import Nodes, Rule, attribute, given, own_node, rank, require, static_size

_NIBBLES = {ir.DataType.INT4: 8, ir.DataType.UINT4: 0}  # what makes them unsigned


class GatherBlockQuantized(Rule):
    """Rows of bytes are gathered, and become floats by arithmetic of floats, which is exact.

    An index that the table has not is an error; onnxruntime's operator gives zeros for it.
    """

    def pattern(self, op: Any, table: Any, indices: Any, scales: Any) -> Any:
        """Match one node."""
        return own_node(op, "GatherBlockQuantized", table, indices, scales)

    def build(
        self, nodes: Nodes, table: ir.Value, indices: ir.Value, scales: ir.Value, y: ir.Value
    ) -> Any:
        """Gather rows of the table, their scales and zero points, and multiply."""
        node = y.producer()
        assert node is not None
        bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 128)
        zeros, lead = given(node, 3), rank(indices)
        require(lead is not None, "the rank of its indices is unknown")
        assert lead is not None
        require(rank(table) == rank(scales) == 2, "its table has not two axes")
        axes = attribute(node, "gather_axis", 0), attribute(node, "quantize_axis", 1)
        require(axes[0] in (0, -2) and axes[1] in (1, -1), "its blocks are not parts of rows")
        if table.dtype in _NIBBLES:
            bits, middle = 4, _NIBBLES[table.dtype]
            table = _bytes_of(nodes, table, middle)
            zeros = None if zeros is None else _bytes_of(nodes, zeros, middle)
        else:
            require(table.dtype == ir.DataType.UINT8, "its table is of floats")
            require(bits in (4, 8), f"its table has {bits} bits")
            middle = 1 << bits - 1
        assert scales.dtype is not None
        row, blocks = static_size(table, 1), static_size(scales, 1)
        require(
            row is not None and row * 8 // bits == (blocks or 0) * block,
            "its rows are no whole blocks of a known number",
        )
        points = None if zeros is None else static_size(zeros, 1)
        require(
            zeros is None or points == -(-(blocks or 0) * bits // 8),
            "its zero points are not those of its blocks",
        )

        def numbers(value: ir.Value) -> ir.Value:
            rows = nodes.onnx("Gather", value, indices, axis=0)
            return nodes.cast(rows, scales.dtype)  # type: ignore[arg-type]

        def last_axes(value: ir.Value, *sizes: int) -> ir.Value:
            made: ir.Value = nodes.onnx("Reshape", value, [*[0] * lead, *sizes])
            return made

        integers = last_axes(_unpacked(nodes, numbers(table), bits), blocks or 0, block)
        point = nodes.constant(middle, scales.dtype)
        if zeros is not None:
            held = last_axes(_unpacked(nodes, numbers(zeros), bits), (points or 0) * 8 // bits)
            held = nodes.onnx("Slice", held, [0], [blocks], [lead])
            point = nodes.onnx("Unsqueeze", held, [-1])
        scale = nodes.onnx("Unsqueeze", nodes.onnx("Gather", scales, indices, axis=0), [-1])
        product = nodes.onnx("Mul", nodes.onnx("Sub", integers, point), scale)
        return last_axes(product, (blocks or 0) * block)


def _bytes_of(nodes: Nodes, value: ir.Value, added: int) -> ir.Value:
    """Return a table of 4-bit integers as bytes of two, of which the first is the lower one."""
    tensor = value.const_value
    require(tensor is not None, "its table is no initializer")
    assert tensor is not None
    held = tensor.numpy().astype(np.int32) + added
    held = np.pad(held, ((0, 0), (0, held.shape[1] % 2)))
    packed = (held[:, ::2] | held[:, 1::2] << 4).astype(np.uint8)
    return nodes.weight(ir.tensor(packed), f"{value.name}.bytes")


def _unpacked(nodes: Nodes, held: ir.Value, bits: int) -> ir.Value:
    """Return the integers of bytes [.., R] as floats: [.., R] of 8 bits, [.., R, 2] of 4."""
    if bits == 8:
        return held
    assert held.dtype is not None
    sixteen = nodes.constant(16, held.dtype)
    upper = nodes.onnx("Floor", nodes.onnx("Div", held, sixteen))
    lower = nodes.onnx("Sub", held, nodes.onnx("Mul", upper, sixteen))
    parts = [nodes.onnx("Unsqueeze", part, [-1]) for part in (lower, upper)]
    made: ir.Value = nodes.onnx("Concat", *parts, axis=-1)
    return made


def rules() -> list[Rule]:
    """Return the rules of this file."""
    return [GatherBlockQuantized()]

"""Products with constant matrices, of floats or quantised, that are joined with what reads them."""

from __future__ import annotations

from typing import NamedTuple, TypeGuard

import onnx_ir as ir

from .node_groups import Search
from .rounded_rows import rounds_by_row

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_RESULTS = (1, 27)  # float16 and bfloat16, as output_dtype names them


class WeightProduct(NamedTuple):
    """What a joined node has of its product.

    The joined node's type begins with ``prefix``, and has these inputs first and last.
    """

    prefix: str
    columns: int | None
    inputs: dict[str, ir.Value]
    last_inputs: dict[str, ir.Value]
    attributes: list[ir.Attr]
    result: ir.Attr | None = None  # names the result's type where the inputs do not tell


def weight_product(search: Search, value: ir.Value | None) -> WeightProduct | None:
    """Return the product with a constant matrix that computes a value."""
    for domain, op_type, recognise in (
        ("", "MatMul", _float_product),
        ("npu", "NPUWeightQuantBatchMatmulV2", _quantized_product),
        ("npu", "NPUQuantMatmul", _integer_product),
    ):
        node = search.producer(value, op_type, domain)
        if node is not None:
            return recognise(node)
    return None


def _float_product(node: ir.Node) -> WeightProduct | None:
    rows, weight = node.inputs
    if rows is None or not _is_weight(weight) or weight.dtype not in _FLOATS:
        return None
    if weight.shape is None or weight.shape.rank() != 2:
        return None
    return WeightProduct("", _size(weight.shape[1]), {"A": rows, "B": weight}, {}, [])


def _quantized_product(node: ir.Node) -> WeightProduct | None:
    """Only where its result is of the type of the rows and has no bias."""
    rows, weight, scale, offset, *others = [*node.inputs, *[None] * 4][:7]
    if rows is None or any(value is not None for value in others):
        return None
    if not _is_weight(weight) or not _is_weight(scale):
        return None
    if offset is not None and not _is_weight(offset):
        return None
    if weight.shape is None or weight.shape.rank() != 2 or scale.dtype not in _FLOATS:
        return None
    if scale.shape is None or scale.shape.rank() not in (1, 2):
        return None
    columns = _size(scale.shape[-1])
    # One scale for all columns is that of a tensor.
    if columns == 1:
        return None
    inputs = {"x": rows, "weight": weight, "antiquant_scale": scale}
    last = {} if offset is None else {"antiquant_offset": offset}
    kept = ("antiquant_group_size", "inner_precise")
    attributes = [each for name in kept if (each := node.attributes.get(name)) is not None]
    return WeightProduct("WeightQuant", columns, inputs, last, attributes)


def _integer_product(node: ir.Node) -> WeightProduct | None:
    """Only of int8, where its result is of 16-bit floats, without offset, bias and groups."""
    rows, weight, scale, offset, row_scale, *others = [*node.inputs, *[None] * 4][:7]
    if rows is None or any(value is not None for value in (offset, *others)):
        return None
    if not _is_weight(weight) or not _is_weight(scale) or "group_sizes" in node.attributes:
        return None
    if {rows.dtype, weight.dtype} != {ir.DataType.INT8} or scale.dtype != ir.DataType.FLOAT:
        return None
    if weight.shape is None or weight.shape.rank() != 2 or scale.shape is None:
        return None
    if scale.shape not in (ir.Shape([weight.shape[1]]), ir.Shape([1, weight.shape[1]])):
        return None
    if row_scale is not None and not _are_rounded_rows(rows, row_scale):
        return None
    result = node.attributes.get("output_dtype")
    if result is None or result.as_int() not in _RESULTS:
        return None
    inputs = {"x1": rows, "x2": weight, "scale": scale}
    last = {} if row_scale is None else {"pertoken_scale": row_scale}
    return WeightProduct("Quant", _size(weight.shape[1]), inputs, last, [], result)


def _are_rounded_rows(rows: ir.Value, scale: ir.Value) -> bool:
    """Whether these are rows and their scales, one for each of them, whatever their axes."""
    node = rows.producer()
    if node is None or node is not scale.producer() or rows is not node.outputs[0]:
        return False
    return rounds_by_row(node)


def _is_weight(value: ir.Value | None) -> TypeGuard[ir.Value]:
    return value is not None and value.is_initializer() and not value.is_graph_input()


def _size(axis: int | ir.SymbolicDim) -> int | None:
    return axis if isinstance(axis, int) else None

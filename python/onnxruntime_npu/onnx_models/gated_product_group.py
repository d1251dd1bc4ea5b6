"""The product of a layer's gate and values, whose halves ``npu_swiglu`` multiplies."""

from __future__ import annotations

import onnx_ir as ir

from .node_groups import Group, Search

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def gated_product(swiglu: ir.Node) -> Group | None:
    """Return the group of this gate and the product with a constant matrix before it."""
    if (swiglu.domain, swiglu.op_type) != ("npu", "NPUSwiGlu"):
        return None
    search = Search(swiglu)
    halves = swiglu.inputs[0]
    axis = swiglu.attributes.get("dim")
    product = search.producer(halves, "MatMul")
    if product is None or halves is None or halves.shape is None:
        return None
    if axis is not None and axis.as_int() not in (-1, halves.shape.rank() - 1):
        return None
    rows, weight = product.inputs
    if rows is None or weight is None or not weight.is_initializer() or weight.is_graph_input():
        return None
    columns = None if weight.shape is None or weight.shape.rank() != 2 else weight.shape[1]
    if weight.dtype not in _FLOATS or not isinstance(columns, int) or columns % 2:
        return None
    inputs, outputs = {"A": rows, "B": weight}, {"Y": swiglu.outputs[0]}
    return Group("GatedMatMul", search.nodes, inputs, outputs, [])

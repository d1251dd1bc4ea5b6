"""The product of a layer's gate and values, whose halves ``npu_swiglu`` multiplies."""

from __future__ import annotations

import onnx_ir as ir

from .node_groups import Group, Search
from .weight_product import weight_product


def gated_product(swiglu: ir.Node) -> Group | None:
    """Return the group of this gate and the product with a constant matrix before it."""
    if (swiglu.domain, swiglu.op_type) != ("npu", "NPUSwiGlu"):
        return None
    search = Search(swiglu)
    halves = swiglu.inputs[0]
    axis = swiglu.attributes.get("dim")
    product = weight_product(search, halves)
    if product is None or halves is None or halves.shape is None:
        return None
    if axis is not None and axis.as_int() not in (-1, halves.shape.rank() - 1):
        return None
    if product.columns is None or product.columns % 2:
        return None
    inputs, outputs = product.inputs | product.last_inputs, {"Y": swiglu.outputs[0]}
    op_type = f"{product.prefix}GatedMatMul"
    attributes = product.attributes + ([] if product.result is None else [product.result])
    return Group(op_type, search.nodes, inputs, outputs, attributes)

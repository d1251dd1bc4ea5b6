"""The product before a residual sum, and the norm of that sum."""

from __future__ import annotations

import onnx_ir as ir

from .node_groups import Group, Search
from .weight_product import weight_product


def normed_product(norm: ir.Node) -> Group | None:
    """Return the group of this norm of a sum and the product with a constant matrix before it."""
    if (norm.domain, norm.op_type) != ("npu", "NPUAddRmsNorm") or len(norm.inputs) != 3:
        return None
    y, rest = norm.outputs[0], norm.outputs[1:]
    if not _is_read(y) or any(_is_read(rstd) for rstd in rest[:1]):
        return None
    for sides in (norm.inputs[:2], norm.inputs[1::-1]):
        search = Search(norm)
        product, residual, gamma = weight_product(search, sides[0]), sides[1], norm.inputs[2]
        if product is None or residual is None or gamma is None:
            continue
        if product.columns is None or gamma.shape != ir.Shape([product.columns]):
            continue
        inputs = product.inputs | {"residual": residual, "gamma": gamma} | product.last_inputs
        outputs = {"Y": y}
        if len(rest) > 1 and _is_read(rest[1]):
            outputs["sum"] = rest[1]
        epsilon = norm.attributes.get("epsilon")
        attributes = [*product.attributes, *([] if epsilon is None else [epsilon])]
        return Group(f"{product.prefix}MatMulAddRmsNorm", search.nodes, inputs, outputs, attributes)
    return None


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()

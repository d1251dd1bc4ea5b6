"""Nodes that round rows of floats to integers."""

from __future__ import annotations

import onnx_ir as ir


def rounds_by_row(node: ir.Node) -> bool:
    """Whether a node is ``npu_dynamic_quant`` with a scale for each row."""
    mode = node.attributes.get("quant_mode")
    by_row = mode is None or mode.as_string() == "pertoken"
    return (node.domain, node.op_type) == ("npu", "NPUDynamicQuant") and by_row

"""Removes conversions to float32 and back, which rules that know one node leave between two."""

from __future__ import annotations

import onnx_ir as ir
from onnxruntime_npu.opdef import all_ops

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def drop_casts(graph: ir.Graph) -> None:
    """Read past a Cast of a 16-bit float to float32 and back: the values are the same.

    Between them may be ``npu_swiglu``, which computes in float32 whatever its type is and rounds
    once, as the second Cast does.
    """
    gated = all_ops()["npu_swiglu"].onnx_type
    for node in list(graph):
        source = _widened(node.inputs[0]) if node.inputs else None
        if source is None or source.dtype is None:
            continue
        if node.domain == "npu" and node.op_type == gated and _all_cast_to(node, source.dtype):
            node.replace_input_with(0, source)
            (result,) = node.outputs
            result.dtype = source.dtype
            for cast in list(result.consumers()):
                ir.convenience.replace_all_uses_with(cast.outputs[0], result)
        elif (
            _is_cast(node)
            and node.outputs[0].dtype == source.dtype
            and not node.outputs[0].is_graph_output()
        ):
            ir.convenience.replace_all_uses_with(node.outputs[0], source)


def _is_cast(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Cast" and not node.domain


def _widened(value: ir.Value | None) -> ir.Value | None:
    """Return the 16-bit value of which a value is the float32 form."""
    node = None if value is None else value.producer()
    if node is None or value is None or not _is_cast(node):
        return None
    source = node.inputs[0]
    exact = value.dtype == ir.DataType.FLOAT and source is not None and source.dtype in _HALVES
    return source if exact else None


def _all_cast_to(node: ir.Node, dtype: ir.DataType) -> bool:
    """Return whether every use of a node's result is a Cast to the type, none of them an output."""
    (result,) = node.outputs
    users = list(result.consumers())
    return (
        bool(users)
        and not result.is_graph_output()
        and all(
            _is_cast(user)
            and user.outputs[0].dtype == dtype
            and not user.outputs[0].is_graph_output()
            for user in users
        )
    )

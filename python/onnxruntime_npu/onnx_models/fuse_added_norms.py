"""Joins the addition of a residual and the norm of the sum in a traced graph."""

from __future__ import annotations

import onnx_ir as ir

from ..opdef import all_ops


def fuse_added_norms(graph: ir.Graph) -> int:
    """Replace Add and ``npu_rms_norm`` of the sum by ``npu_add_rms_norm``; return how many.

    Only sums of two tensors of the sum's own shape: the operator does not broadcast.
    """
    operators = all_ops()
    norm, added = (operators[op].onnx_type for op in ("npu_rms_norm", "npu_add_rms_norm"))
    fused = 0
    for node in list(graph):
        if node.domain != "npu" or node.op_type != norm:
            continue
        total = node.inputs[0]
        add = total.producer() if total is not None else None
        if add is None or add.domain or add.op_type != "Add" or not _same_shapes(add):
            continue
        if add.graph is not graph:  # of which this one is a branch
            continue
        if node.inputs[1] is None or node.inputs[1].producer() is not None:  # not a weight
            continue
        assert total is not None
        normed = node.outputs[0]
        outputs = [
            ir.Value(name=normed.name, shape=normed.shape, type=normed.type),
            ir.Value(name=""),
            ir.Value(name=total.name, shape=total.shape, type=total.type),
        ]
        joined = ir.Node(
            "npu",
            added,
            [*add.inputs, node.inputs[1]],
            list(node.attributes.values()),
            outputs=outputs,
            name=node.name,
        )
        # In the place of the addition: the sum may be used before it is normed.
        graph.insert_before(add, joined)
        ir.convenience.replace_all_uses_with(
            [normed, total], [outputs[0], outputs[2]], replace_graph_outputs=True
        )
        graph.remove([node, add], safe=True)
        fused += 1
    return fused


def _same_shapes(add: ir.Node) -> bool:
    shapes = [value.shape if value is not None else None for value in (*add.inputs, *add.outputs)]
    return all(shape is not None and shape == shapes[-1] for shape in shapes)

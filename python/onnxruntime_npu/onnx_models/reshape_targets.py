"""Targets of Reshapes: constants that copy (0) or infer (-1) the sizes that vary.

Tracing knows every shape; computing a target at run time costs nodes on the host per step.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def make_reshapes_constant(graph: ir.Graph) -> None:
    """Replace targets that are computed."""
    for node in graph:
        if not is_reshape(node) or node.inputs[0] is None:
            continue
        computed = node.inputs[1]
        if computed is None or computed.const_value is not None:
            continue
        target = constant_target(node.inputs[0].shape, node.outputs[0].shape)
        if target is not None:
            set_target(node, target, graph)


def is_reshape(node: ir.Node) -> bool:
    """Whether a node is ONNX's Reshape."""
    return node.op_type == "Reshape" and not node.domain


def constant_target(source: ir.Shape | None, result: ir.Shape | None) -> list[int] | None:
    """Return the constant by which a source of one shape gets another, or None if there is none."""
    if source is None or result is None:
        return None
    target: list[int] = []
    for i, dim in enumerate(result):
        if isinstance(dim, int):
            if dim == 0:
                return None
            target.append(dim)
        elif dim.value is not None and i < len(source) and source[i] == dim:
            target.append(0)
        else:
            target.append(-1)
    return target if target.count(-1) <= 1 else None


def set_target(node: ir.Node, target: list[int], graph: ir.Graph) -> None:
    """Give a Reshape a constant target."""
    name = "shape_" + "_".join(str(d).replace("-", "m") for d in target)
    if name not in graph.initializers:
        tensor = ir.tensor(np.array(target, np.int64), name=name)
        graph.register_initializer(
            ir.Value(
                name=name,
                shape=ir.Shape([len(target)]),
                type=ir.TensorType(ir.DataType.INT64),
                const_value=tensor,
            )
        )
    node.replace_input_with(1, graph.initializers[name])
    node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)

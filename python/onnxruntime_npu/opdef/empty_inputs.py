"""Empty constants among the inputs of ``npu::`` nodes: exporters write one for an absent tensor.

Whoever reads a node takes an optional input that is one for absent.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from .definition import Op
from .nested_graphs import nested_graphs
from .node_types import all_node_types

_DOMAIN = "npu"


def stands_for_absent(op: Op, position: int) -> bool:
    """Whether an empty constant at this place of the operator's nodes is an absent input."""
    return position < len(op.inputs) and op.inputs[position].optional


def empty_constants(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the constants without elements, those of subgraphs among them."""
    names: set[str] = set()
    for each in nested_graphs(graph):
        fed = {value.name for value in each.input}  # an initializer of that name is only a default
        names |= {t.name for t in each.initializer if 0 in t.dims and t.name not in fed}
        names |= _empty_constant_nodes(each.node)
    return names


def drop_empty_inputs(model: onnx.ModelProto) -> bool:
    """Leave out, in place, the empty inputs of nodes without a body; whether there was any.

    onnxruntime types the results of such a node by the types of all that it names, and looks at no
    shape.
    """
    types = all_node_types()
    bodies = {(f.domain, f.name, f.overload) for f in model.functions}
    empty = empty_constants(model.graph)
    scopes = [(node, empty) for graph in nested_graphs(model.graph) for node in graph.node]
    for function in model.functions:
        inside = _empty_constant_nodes(function.node)
        scopes += [(node, inside) for node in function.node]
    dropped = False
    for node, names in scopes:
        if node.domain != _DOMAIN or node.op_type not in types:
            continue
        if (node.domain, node.op_type, node.overload) in bodies:
            continue
        op = types[node.op_type].op_for(len(node.input))
        for i, name in enumerate(node.input):
            if name in names and stands_for_absent(op, i):
                node.input[i] = ""
                dropped = True
    return dropped


def _empty_constant_nodes(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return {
        node.output[0]
        for node in nodes
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx")
        for attribute in node.attribute
        if attribute.name == "value" and 0 in attribute.t.dims
    }

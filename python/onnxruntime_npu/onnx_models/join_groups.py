"""Joins nodes of a decoder with a paged cache that the NPU computes as one.

A session whose values are in host memory, as onnxruntime-genai's, cannot fuse nodes by itself, and
a dozen small nodes in each layer take a tenth of a step that decodes. The function of a joined node
consists of the nodes that it stands for, so that the file runs anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from .gated_product_group import gated_product
from .node_groups import DOMAIN, Group, said
from .normed_product_group import normed_product
from .paged_attention_group import paged_attention
from .scaled_row_groups import scaled_row_attention, scaled_rows

_OF_PAGED_CACHES = (scaled_rows, scaled_row_attention, paged_attention)


def join_groups(model: ir.Model) -> dict[str, int]:
    """Join such nodes, whose ``npu::`` nodes have their bodies; return how many by type."""
    counts: dict[str, int] = {}
    order = {node: i for i, node in enumerate(model.graph)}
    called = {node.op_identifier() for node in order}
    bodies: dict[tuple[object, ...], str] = {}
    for find in (*_OF_PAGED_CACHES, gated_product, normed_product):
        if find is gated_product and not counts:  # without one the provider finds groups itself
            break
        for node in list(model.graph):
            group = find(node)
            if group is not None and group.is_closed() and _can_end(group, order):
                _join(group, model, order, bodies)
                counts[group.op_type] = counts.get(group.op_type, 0) + 1
    if counts:
        model.opset_imports[DOMAIN] = 1
        _drop_functions(model, called)
    return counts


def _drop_functions(model: ir.Model, called: set[ir.OperatorIdentifier]) -> None:
    """Remove those of these functions that nothing calls any more."""
    nodes = list(model.graph.all_nodes())
    for function in model.functions.values():
        nodes += function.all_nodes()
    still = {node.op_identifier() for node in nodes}
    for identifier in (called - still) & set(model.functions):
        del model.functions[identifier]


def _can_end(group: Group, order: dict[ir.Node, int]) -> bool:
    """Whether what the group returns is read behind all of its nodes: by nothing that it needs."""
    inner, last = set(group.nodes), max(order[node] for node in group.nodes)
    readers = {use.node for output in group.outputs.values() for use in output.uses()} - inner
    return all(order[reader] > last for reader in readers)


def _join(
    group: Group,
    model: ir.Model,
    order: dict[ir.Node, int],
    bodies: dict[tuple[object, ...], str],
) -> None:
    group.nodes.sort(key=order.__getitem__)
    last = group.nodes[-1]
    key = (group.op_type, *_content(group))
    if key not in bodies:
        same = sum(other[0] == group.op_type for other in bodies)
        bodies[key] = str(same) if same else ""
        function = _function(group, bodies[key], model)
        model.functions[function.identifier()] = function
    returned = list(group.outputs.values())
    outputs = [ir.Value(name=v.name, shape=v.shape, type=v.type) for v in returned]
    joined = ir.Node(
        DOMAIN,
        group.op_type,
        list(group.inputs.values()),
        group.attributes,
        overload=bodies[key],
        outputs=outputs,
        name=last.name,
    )
    model.graph.insert_after(last, joined)
    order[joined] = order[last]
    ir.convenience.replace_all_uses_with(returned, outputs, replace_graph_outputs=True)
    model.graph.remove(group.nodes, safe=True)


def _inner_constants(group: Group) -> Iterable[ir.Value]:
    """Yield the constants that joined nodes read and the joined node does not."""
    given = set(group.inputs.values())
    for node in group.nodes:
        for value in node.inputs:
            if value is not None and value not in given and value.producer() is None:
                yield value


def _content(group: Group) -> Iterable[object]:
    """Yield what tells whether two groups of one type have the same function."""
    for node in group.nodes:
        yield node.op_identifier()
        yield tuple(sorted(str(said(each)) for each in node.attributes.values()))
    for value in _inner_constants(group):
        assert value.const_value is not None
        yield tuple(value.const_value.numpy().ravel().tolist())


def _function(group: Group, overload: str, model: ir.Model) -> ir.Function:
    formal = [ir.Value(name=name) for name in group.inputs]
    values = dict(zip(group.inputs.values(), formal, strict=True))
    nodes: list[ir.Node] = []
    for constant in _inner_constants(group):
        if constant not in values:
            assert constant.const_value is not None
            tensor = ir.tensor(np.array(constant.const_value.numpy()))
            values[constant] = ir.Value(name=f"constant_{len(nodes)}")
            attribute = ir.AttrTensor("value", tensor)
            nodes.append(ir.Node("", "Constant", [], [attribute], outputs=[values[constant]]))
    names = {value: name for name, value in group.outputs.items()}
    for i, node in enumerate(group.nodes):
        # All that the node's own function returns, with a name each: inlining it needs them.
        own = model.functions.get(node.op_identifier())
        count = len(node.outputs if own is None else own.outputs)
        outputs = [ir.Value(name=f"{node.op_type}_{i}_{j}") for j in range(count)]
        for output, value in zip(node.outputs, outputs, strict=False):
            value.name = names.get(output, value.name)
            values[output] = value
        nodes.append(
            ir.Node(
                node.domain,
                node.op_type,
                [None if value is None else values[value] for value in node.inputs],
                list(node.attributes.values()),
                overload=node.overload,
                outputs=outputs,
            )
        )
    results = [values[output] for output in group.outputs.values()]
    imports = {domain: version for domain, version in model.opset_imports.items() if version}
    graph = ir.Graph(formal, results, nodes=nodes, opset_imports=imports)
    # Without functions within it: inlined by onnxruntime, their nodes would lose their overloads.
    called = {node.op_identifier() for node in nodes} & set(model.functions)
    inner = ir.Model(
        graph, ir_version=model.ir_version, functions=[model.functions[each] for each in called]
    )
    common.InlinePass()(inner)
    return ir.Function(DOMAIN, group.op_type, overload, graph=graph, attributes=group.attributes)

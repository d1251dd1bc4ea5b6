"""Joins what a layer does with a paged cache, from its joint projection on, into one node.

A session whose values are in host memory, as onnxruntime-genai's, cannot fuse nodes by itself, and
a dozen small nodes in each layer take a tenth of a step that decodes. The node's function consists
of the nodes that it stands for, so that the file runs anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

DOMAIN, TYPE = "npu.fused", "PagedSelfAttention"
_INPUTS = (
    *("rows", "cos", "sin", "past_keys", "past_values", "slots", "atten_mask", "query_ends"),
    *("key_lengths", "block_table"),
)
_OUTPUTS = ("attended", "keys", "values")
_QUERY, _KEY, _VALUE, _MASK, _ENDS, _LENGTHS, _TABLE = 0, 1, 2, 4, 5, 6, 18  # inputs of attention
_TAKEN = {_QUERY, _KEY, _VALUE, _MASK, _ENDS, _LENGTHS, _TABLE}
# Attributes of attention that the node has, too; others have to be 0, as if they were left out.
_ATTRIBUTES = (
    *("num_heads", "num_key_value_heads", "scale", "block_size", "sparse_mode", "pre_tokens"),
    "next_tokens",
)


class _Group(NamedTuple):
    """Nodes that are joined, in order, and what they read, return and say."""

    nodes: list[ir.Node]
    inputs: list[ir.Value]
    outputs: list[ir.Value]
    attributes: list[ir.Attr]


def join_paged_attention(model: ir.Model) -> int:
    """Join such nodes, whose ``npu::`` nodes have their bodies; return how many groups."""
    graph = model.graph
    order = {node: i for i, node in enumerate(graph)}
    bodies: dict[tuple[object, ...], str] = {}
    for attention in list(graph):
        group = _group(attention, order)
        if group is None:
            continue
        # Groups that say the same have the same nodes: constants follow from attributes and sizes.
        key = (*(_said(attribute) for attribute in group.attributes), *_constants(group))
        if key not in bodies:
            bodies[key] = str(len(bodies)) if bodies else ""
            function = _function(group, bodies[key], model)
            model.functions[function.identifier()] = function
        outputs = [ir.Value(name=v.name, shape=v.shape, type=v.type) for v in group.outputs]
        joined = ir.Node(
            DOMAIN,
            TYPE,
            group.inputs,
            group.attributes,
            overload=bodies[key],
            outputs=outputs,
            name=attention.name,
        )
        graph.insert_after(group.nodes[-1], joined)
        order[joined] = order[group.nodes[-1]]
        ir.convenience.replace_all_uses_with(group.outputs, outputs, replace_graph_outputs=True)
        graph.remove(group.nodes, safe=True)
    if bodies:
        model.opset_imports[DOMAIN] = 1
    return sum(node.op_identifier()[:2] == (DOMAIN, TYPE) for node in graph)


class _Search:
    """Follows values to the nodes that computed them, and remembers these."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def producer(self, value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
        """Return the node of this type that computes a value."""
        node = None if value is None else value.producer()
        if node is None or (node.domain, node.op_type) != (domain, op_type):
            return None
        if node not in self.nodes:
            self.nodes.append(node)
        return node

    def through(self, value: ir.Value | None, *op_types: str) -> ir.Value | None:
        """Return what nodes of these types, the last first, have made the value of."""
        for op_type in op_types:
            node = self.producer(value, op_type)
            if node is None or any(not _is_constant(each) for each in node.inputs[1:]):
                return None
            value = node.inputs[0]
        return value

    def written(self, value: ir.Value | None) -> tuple[ir.Node, ir.Value | None] | None:
        """Return the node that writes new rows into the blocks that attention reads, and these."""
        scatter = self.producer(self.through(value, "Reshape"), "NPUScatterNdUpdate", "npu")
        return None if scatter is None else (scatter, self.through(scatter.inputs[2], "Reshape"))


def _group(attention: ir.Node, order: dict[ir.Node, int]) -> _Group | None:
    if (attention.domain, attention.op_type) != ("npu", "NPUFusedInferAttentionScore"):
        return None
    if not _is_plain(attention):
        return None
    search = _Search()
    search.nodes.append(attention)
    given = attention.inputs
    query = search.producer(search.through(given[_QUERY], "Reshape"), "NPURotaryMul", "npu")
    keys, values = search.written(given[_KEY]), search.written(given[_VALUE])
    if query is None or keys is None or values is None:
        return None
    key = search.producer(keys[1], "NPURotaryMul", "npu")
    split = search.producer(query.inputs[0], "Split")
    if key is None or split is None or len(split.outputs) != 3:
        return None
    rows = search.through(split.inputs[0], "Reshape")
    unsqueezed = _sole_reader(attention.outputs[0], "Unsqueeze")
    attended = None if unsqueezed is None else _sole_reader(unsqueezed.outputs[0], "Reshape")
    if rows is None or unsqueezed is None or attended is None:
        return None
    search.nodes += [unsqueezed, attended]
    if (
        rows.shape is None
        or rows.shape.rank() != 3
        or list(split.outputs) != [query.inputs[0], key.inputs[0], values[1]]
        or not _splits_heads(split, query, attention)
        or list(query.inputs[1:]) != list(key.inputs[1:])
        or keys[0].inputs[1] is not values[0].inputs[1]
        or _said(query.attributes.get("rotary_mode")) != _said(key.attributes.get("rotary_mode"))
    ):
        return None
    inputs = [
        *(rows, *query.inputs[1:3], keys[0].inputs[0], values[0].inputs[0], keys[0].inputs[1]),
        *(given[_MASK], given[_ENDS], given[_LENGTHS], given[_TABLE]),
    ]
    named = [(attention, name) for name in _ATTRIBUTES] + [(query, "rotary_mode")]
    group = _Group(
        sorted(search.nodes, key=order.__getitem__),
        [value for value in inputs if value is not None],
        [attended.outputs[0], keys[0].outputs[0], values[0].outputs[0]],
        [node.attributes[name] for node, name in named if name in node.attributes],
    )
    whole = len(group.inputs) == len(_INPUTS)
    return group if whole and _is_closed(group) and _can_end(group, order) else None


def _splits_heads(split: ir.Node, query: ir.Node, attention: ir.Node) -> bool:
    """Whether heads [1, T, N, D] are split as attention has them, and tables rotate all columns."""
    heads, parts = (value for value in split.inputs[:2])
    axis, sizes = split.attributes.get("axis"), ir.convenience.get_const_tensor(parts)
    wanted = [attention.attributes[f"num_{of}heads"].as_int() for of in ("", "key_value_")]
    tables = [value.shape for value in query.inputs[1:] if value is not None]
    shape = None if heads is None else heads.shape
    return (
        shape is not None
        and shape.rank() == 4
        and axis is not None
        and axis.as_int() == 2
        and sizes is not None
        and sizes.numpy().tolist() == [*wanted, wanted[1]]
        and len(tables) == 2  # and no matrix
        and all(each is not None and each.rank() == 4 and each[3] == shape[3] for each in tables)
    )


def _is_plain(attention: ir.Node) -> bool:
    """Whether attention is over blocks of floats, by rows side by side, and nothing else."""
    inputs = {i for i, value in enumerate(attention.inputs) if value is not None}
    layout = attention.attributes.get("input_layout")
    other = [a for n, a in attention.attributes.items() if n not in (*_ATTRIBUTES, "input_layout")]
    return (
        inputs == _TAKEN
        and "num_key_value_heads" in attention.attributes
        and layout is not None
        and layout.as_string() == "TND"
        and all(attribute.value == 0 for attribute in other)
        and not any(output.uses() for output in attention.outputs[1:])
    )


def _is_closed(group: _Group) -> bool:
    """Whether nothing else reads what the joined node does not return."""
    inner = set(group.nodes)
    returned = set(group.outputs)
    return all(
        output in returned
        or (not output.is_graph_output() and all(use.node in inner for use in output.uses()))
        for node in group.nodes
        for output in node.outputs
    )


def _can_end(group: _Group, order: dict[ir.Node, int]) -> bool:
    """Whether what the group returns is read behind all of its nodes: by nothing that it needs."""
    inner, last = set(group.nodes), order[group.nodes[-1]]
    readers = {use.node for output in group.outputs for use in output.uses()} - inner
    return all(order[reader] > last for reader in readers)


def _sole_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    uses = list(value.uses())
    if len(uses) != 1 or uses[0].node.domain or uses[0].node.op_type != op_type:
        return None
    return uses[0].node


def _is_constant(value: ir.Value | None) -> bool:
    return value is None or ir.convenience.get_const_tensor(value) is not None


def _said(attribute: ir.Attr | None) -> object:
    return None if attribute is None else (attribute.name, attribute.value)


def _inner_constants(group: _Group) -> Iterable[ir.Value]:
    """Yield the constants that joined nodes read and the joined node does not."""
    given = set(group.inputs)
    for node in group.nodes:
        for value in node.inputs:
            if value is not None and value not in given and value.producer() is None:
                yield value


def _constants(group: _Group) -> Iterable[object]:
    for value in _inner_constants(group):
        assert value.const_value is not None
        yield tuple(value.const_value.numpy().ravel().tolist())


def _function(group: _Group, overload: str, model: ir.Model) -> ir.Function:
    formal = [ir.Value(name=name) for name in _INPUTS]
    values: dict[ir.Value, ir.Value] = dict(zip(group.inputs, formal, strict=True))
    nodes: list[ir.Node] = []
    for constant in _inner_constants(group):
        if constant not in values:
            assert constant.const_value is not None
            tensor = ir.tensor(np.array(constant.const_value.numpy()))
            values[constant] = ir.Value(name=f"constant_{len(nodes)}")
            attribute = ir.AttrTensor("value", tensor)
            nodes.append(ir.Node("", "Constant", [], [attribute], outputs=[values[constant]]))
    names = dict(zip(group.outputs, _OUTPUTS, strict=True))
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
    results = [values[output] for output in group.outputs]
    imports = {domain: model.opset_imports[domain] for domain in ("", "npu")}
    graph = ir.Graph(formal, results, nodes=nodes, opset_imports=imports)
    # Without functions within it: inlined by onnxruntime, their nodes would lose their overloads.
    called = {node.op_identifier() for node in nodes} & set(model.functions)
    inner = ir.Model(
        graph, ir_version=model.ir_version, functions=[model.functions[each] for each in called]
    )
    common.InlinePass()(inner)
    return ir.Function(DOMAIN, TYPE, overload, graph=graph, attributes=group.attributes)

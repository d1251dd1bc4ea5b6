"""Groups of nodes that become one: what they have, and how they are found."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

DOMAIN = "npu.fused"
# Types of nodes of this domain that others are made of: rows of int8 that end with their scales,
# attention to a cache of them, and the bytes of a float32.
SCALED_ROWS, SCALED_ROW_ATTENTION = "ScaledRows", "ScaledRowAttention"
BYTES_OF_FLOATS, FLOATS_OF_BYTES = "BytesOfFloats", "FloatsOfBytes"


class Group(NamedTuple):
    """Nodes that are joined into one of domain ``npu.fused``.

    Inputs and outputs are by the names that they have in the function.
    """

    op_type: str
    nodes: list[ir.Node]
    inputs: dict[str, ir.Value]
    outputs: dict[str, ir.Value]
    attributes: list[ir.Attr]

    def is_closed(self) -> bool:
        """Whether nothing else reads what the joined node does not return."""
        inner, returned = set(self.nodes), set(self.outputs.values())
        return all(
            output in returned
            or (not output.is_graph_output() and all(use.node in inner for use in output.uses()))
            for node in self.nodes
            for output in node.outputs
        )


class Search:
    """Follows values to the nodes that computed them, and remembers these."""

    def __init__(self, *nodes: ir.Node) -> None:
        self.nodes = list(nodes)

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
            if node is None or any(not is_constant(each) for each in node.inputs[1:]):
                return None
            value = node.inputs[0]
        return value

    def reader(self, value: ir.Value | None, op_type: str) -> ir.Value | None:
        """Return the result of the node of this type that alone reads a value."""
        uses = [] if value is None else list(value.uses())
        if len(uses) != 1 or uses[0].node.domain or uses[0].node.op_type != op_type:
            return None
        self.nodes.append(uses[0].node)
        return uses[0].node.outputs[0]


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is left out or known."""
    return value is None or ir.convenience.get_const_tensor(value) is not None


def said(attribute: ir.Attr | None) -> object:
    """Return what tells whether two attributes are equal."""
    return None if attribute is None else (attribute.name, attribute.value)

"""Operators that ONNX defines for float32 but not for bfloat16 are computed in float32.

torch has TopK, Round and others for bfloat16; ONNX got them in later opsets, or not at all.
"""

from __future__ import annotations

import functools
from typing import Any

import onnx
import onnx_ir as ir

_TYPE = "tensor(bfloat16)"


def upcast(graph: ir.Graph, opset: int, *, everywhere: bool = False) -> None:
    """Put casts around the nodes that are not defined for their bfloat16 operands.

    everywhere: around all nodes of ONNX. Some models of other dtypes round parts to bfloat16, for
    which onnxruntime's CPU provider has casts but no arithmetic.
    """
    _Upcast(opset, everywhere).of_graph(graph)


class _Upcast:
    def __init__(self, opset: int, everywhere: bool) -> None:
        self.opset = opset
        self.everywhere = everywhere
        self.wide: dict[ir.Value, ir.Value] = {}  # each is cast once
        self.current: dict[ir.Graph, ir.Node] = {}  # of the graphs around a node and its own

    def of_graph(self, graph: ir.Graph) -> None:
        for node in list(graph):
            self.current[graph] = node
            bodies = [
                attribute.as_graph()
                for attribute in node.attributes.values()
                if attribute.type == ir.AttributeType.GRAPH
            ]
            for body in bodies:
                self.of_graph(body)
            if not bodies and not node.domain and node.op_type != "Cast":
                self._of_node(graph, node)

    def _of_node(self, graph: ir.Graph, node: ir.Node) -> None:
        _type_outputs(node, self.opset)
        upcasts = [
            i
            for i, value in enumerate(node.inputs)
            if value is not None
            and value.dtype == ir.DataType.BFLOAT16
            and (self.everywhere or _lacks(node.op_type, self.opset, True, i))
        ]
        if not upcasts:
            return
        for i in upcasts:
            node.replace_input_with(i, self._widened(node.inputs[i]))
        for i, output in enumerate(node.outputs):
            if output.dtype == ir.DataType.BFLOAT16 and (
                self.everywhere or _lacks(node.op_type, self.opset, False, i)
            ):
                _narrow(graph, node, output)

    def _widened(self, value: ir.Value | None) -> ir.Value:
        """Return a value in float32, which is cast in the graph that the value is of."""
        assert value is not None
        if value not in self.wide:
            assert value.graph is not None
            wide = _cast(value, ir.DataType.FLOAT)
            value.graph.insert_before(self.current[value.graph], wide)
            self.wide[value] = wide.outputs[0]
        return self.wide[value]


def _type_outputs(node: ir.Node, opset: int) -> None:
    """Give outputs without a type that of the bfloat16 operands whose type they share.

    What torch.onnx has as an ONNX function is inlined without the types of its inner values.
    """
    untyped = [i for i, output in enumerate(node.outputs) if output.dtype is None]
    if not untyped:
        return
    names = {
        _type_name(node.op_type, opset, True, i)
        for i, value in enumerate(node.inputs)
        if value is not None and value.dtype == ir.DataType.BFLOAT16
    }
    for i in untyped:
        name = _type_name(node.op_type, opset, False, i)
        if name is not None and name in names:
            node.outputs[i].dtype = ir.DataType.BFLOAT16


def _narrow(graph: ir.Graph, node: ir.Node, output: ir.Value) -> None:
    """Cast an output back for those that use it."""
    uses = list(output.uses())
    output.dtype = ir.DataType.FLOAT
    narrow = _cast(output, ir.DataType.BFLOAT16)
    graph.insert_after(node, narrow)
    result = narrow.outputs[0]
    for user, index in uses:
        user.replace_input_with(index, result)
    for i, value in enumerate(graph.outputs):
        if value is output:
            result.name, output.name = output.name, f"{output.name}_float32"
            graph.outputs[i] = result


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    output = ir.Value(
        name=f"{value.name}_{dtype.name.lower()}", shape=value.shape, type=ir.TensorType(dtype)
    )
    return ir.Node(
        "", "Cast", [value], [ir.AttrInt64("to", int(dtype))], outputs=[output],
        name=f"cast_{output.name}",
    )  # fmt: skip


@functools.cache
def _lacks(op_type: str, opset: int, is_input: bool, index: int) -> bool:
    """Whether a parameter of an operator has no bfloat16."""
    schema, formal = _parameter(op_type, opset, is_input, index)
    if schema is None or formal is None:
        return False
    name = formal.type_str
    allowed = next((c.allowed_type_strs for c in schema.type_constraints
                    if c.type_param_str == name), [name])  # fmt: skip
    return "tensor(float)" in allowed and _TYPE not in allowed


@functools.cache
def _type_name(op_type: str, opset: int, is_input: bool, index: int) -> str | None:
    """Return the name under which a parameter shares its type with others."""
    _, formal = _parameter(op_type, opset, is_input, index)
    return formal.type_str if formal is not None and formal.is_homogeneous else None


def _parameter(op_type: str, opset: int, is_input: bool, index: int) -> tuple[Any, Any]:
    """Return an operator's schema and one of its parameters, None for what there is not."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None, None
    formal = list(schema.inputs if is_input else schema.outputs)
    return schema, formal[min(index, len(formal) - 1)] if formal else None

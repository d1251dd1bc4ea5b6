"""Adds the portable bodies to a model, so that it also runs without an NPU."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import onnx
import onnx_ir as ir

from .definition import Op
from .discovery import all_compositions
from .empty_inputs import empty_constants, stands_for_absent
from .function_body import IR_ATTRIBUTE_TYPES, BodyLibrary, TensorType
from .node_parts import Attribute, DefinitionError
from .node_types import all_node_types

_DOMAIN = "npu"
# The overload of a node without a body in a model where other nodes of its type have one.
_NOT_PORTABLE = "not_portable"
_OVERLOAD_IR_VERSION = 10  # the first whose functions may have overloads


def attach_function_bodies(
    model: onnx.ModelProto | ir.Model, made: Collection[ir.Node] = ()
) -> list[str]:
    """Give every ``npu::`` node of the model its portable body, in place.

    Run this last: an optimizer that inlines functions would dissolve the nodes. Existing functions
    of the model are kept. Call it on the ``ir.Model`` of an exporter where there is one: element
    types are known there; in a ModelProto they come from value_info, otherwise from type inference.

    ``made`` are nodes of an ``ir.Model`` that are newer than its functions: none of these is their
    body, whatever its name.

    Returns the op types, sorted, that have no portable body: such a model needs the NPU.
    Raises DefinitionError for an unknown ``npu`` op type or an input of unknown element type.
    """
    if isinstance(model, onnx.ModelProto):
        return _attach_to_proto(model)
    return _attach_to_ir(model, made)


class _Bodies:
    """Bodies for the nodes of one model; ``missing`` are the op types that have none."""

    def __init__(self, opset: int, existing: Iterable[tuple[str, str, str]]) -> None:
        self._types = all_node_types()
        self._files_only = {op.file_type for op in all_compositions().values()}
        self._library = BodyLibrary(opset, [(name, overload) for _, name, overload in existing])
        self.missing: set[str] = set()

    def op_of(self, op_type: str, input_count: int) -> Op | None:
        """Return the operator of a node; None if it has no body, DefinitionError if unknown."""
        if op_type in self._files_only:
            self.missing.add(op_type)
            return None
        if op_type not in self._types:
            known = ", ".join(self._types)
            raise DefinitionError(
                f"expected an operator of domain 'npu', got {op_type!r}; known: {known}"
            )
        return self._types[op_type].op_for(input_count)

    def give(
        self,
        node: ir.Node | onnx.NodeProto,
        op: Op,
        attrs: dict[str, Any],
        inputs: list[TensorType | None],
    ) -> ir.Function | None:
        """Return the node's body, whose overload it gets, or None if it has none."""
        function = self._library.body_for(op, node.op_type, attrs, inputs)
        if function is not None:
            node.overload = function.overload
            return function
        self.missing.add(node.op_type)
        if op.body_function is not None:
            node.overload = _NOT_PORTABLE
        return None


def _attach_to_ir(model: ir.Model, made: Collection[ir.Node]) -> list[str]:
    existing = set(model.functions)
    bodies = _Bodies(model.opset_imports.get("", 0), existing)
    for node in model.graph.all_nodes():
        if node.domain != _DOMAIN or (node.op_identifier() in existing and node not in made):
            continue
        op = bodies.op_of(node.op_type, len(node.inputs))
        if op is None:
            continue
        attrs = {name: _plain(a.value) for name, a in node.attributes.items()}
        for attribute, value in _named_otherwise(op, attrs):
            for name in (attribute.name, *attribute.aliases):
                node.attributes.pop(name, None)
            kind = IR_ATTRIBUTE_TYPES[attribute.kind]
            node.attributes.add(ir.Attr(attribute.name, kind, value))
        inputs = [
            None
            if v is None or (_is_empty_constant(v) and stands_for_absent(op, i))
            else _ir_type(node, v)
            for i, v in enumerate(node.inputs)
        ]
        if (function := bodies.give(node, op, attrs, inputs)) is not None:
            model.functions[function.identifier()] = function
    model.opset_imports[_DOMAIN] = 1
    if any(node.overload for node in model.graph.all_nodes()):
        model.ir_version = max(model.ir_version, _OVERLOAD_IR_VERSION)
    return sorted(bodies.missing)


def _attach_to_proto(model: onnx.ModelProto) -> list[str]:
    opsets = {o.domain: o.version for o in model.opset_import}
    existing = {(f.domain, f.name, f.overload) for f in model.functions}
    bodies = _Bodies(opsets.get("", 0), existing)
    functions: dict[str, ir.Function] = {}
    known: dict[str, TensorType] | None = None
    empty = empty_constants(model.graph)
    for node in _all_nodes(model.graph):
        if node.domain != _DOMAIN or (node.domain, node.op_type, node.overload) in existing:
            continue
        op = bodies.op_of(node.op_type, len(node.input))
        if op is None:
            continue
        if known is None:
            known = _value_types(model)
        attrs = {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in node.attribute}
        for attribute, value in _named_otherwise(op, attrs):
            names = (attribute.name, *attribute.aliases)
            for given in [a for a in node.attribute if a.name in names]:
                node.attribute.remove(given)
            kind = getattr(onnx.AttributeProto, attribute.kind.upper())
            node.attribute.append(onnx.helper.make_attribute(attribute.name, value, attr_type=kind))
        inputs = [
            None
            if not name or (name in empty and stands_for_absent(op, i))
            else _proto_type(node, name, known)
            for i, name in enumerate(node.input)
        ]
        if (function := bodies.give(node, op, attrs, inputs)) is not None:
            functions[f"{function.name}:{function.overload}"] = function
    model.functions.extend(ir.to_proto(f) for f in functions.values())
    if _DOMAIN not in opsets:
        model.opset_import.add(domain=_DOMAIN, version=1)
    if any(node.overload for node in _all_nodes(model.graph)):
        model.ir_version = max(model.ir_version, _OVERLOAD_IR_VERSION)
    return sorted(bodies.missing)


def _named_otherwise(op: Op, attrs: dict[str, Any]) -> list[tuple[Attribute, Any]]:
    """Return attributes whose names or values in a node are not the definition's: with those."""
    given = [(a, a.given(attrs.get)) for a in op.attributes if a.aliases or a.words]
    return [(a, value) for a, value in given if value != attrs.get(a.name)]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, (list, tuple)) else value


def _is_empty_constant(value: ir.Value) -> bool:
    constant = ir.convenience.get_const_tensor(value)
    return constant is not None and constant.size == 0


def _ir_type(node: ir.Node, value: ir.Value) -> TensorType:
    if value.dtype is None:
        raise DefinitionError(_untyped(node.op_type, node.name, value.name))
    rank = None if value.shape is None else value.shape.rank()
    return TensorType(_dtype_name(int(value.dtype)), rank)


def _proto_type(node: onnx.NodeProto, name: str, known: dict[str, TensorType]) -> TensorType:
    if name not in known:
        raise DefinitionError(_untyped(node.op_type, node.name, name))
    return known[name]


def _untyped(op_type: str, node: str | None, value: str | None) -> str:
    return (
        f"expected a model that tells the element type of {value!r}, an input of {op_type} node "
        f"{node!r}: run onnx.shape_inference.infer_shapes on it first"
    )


def _dtype_name(number: int) -> str:
    from .dtypes import NAMES

    return NAMES.get(number, f"type {number}")


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for subgraph in _subgraphs(node):
            yield from _all_nodes(subgraph)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _value_types(model: onnx.ModelProto) -> dict[str, TensorType]:
    """Return the type of every named value; inferred ones where the model lacks them."""
    known: dict[str, TensorType] = {}
    _collect(model.graph, known)
    needed = {
        name
        for node in _all_nodes(model.graph)
        if node.domain == _DOMAIN
        for name in node.input
        if name
    }
    if needed - set(known):
        from .onnx_schema import register_schemas

        register_schemas()
        # A model that fails inference may still contain the needed types; the caller checks.
        with contextlib.suppress(onnx.shape_inference.InferenceError):
            inferred = onnx.shape_inference.infer_shapes(_without_weights(model))
            _collect(inferred.graph, known)
    return known


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose large initializers are inputs: inference needs only their types."""
    copy = onnx.ModelProto()
    copy.ir_version = model.ir_version
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    given = {v.name for v in graph.input}
    for tensor in model.graph.initializer:
        # Short ones may be shapes and axes, whose values inference reads; empty ones absent inputs.
        if 0 in tensor.dims or (len(tensor.dims) <= 1 and sum(tensor.dims) <= 64):
            graph.initializer.append(tensor)
        elif tensor.name not in given:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(value)
    return copy


def _collect(graph: onnx.GraphProto, known: dict[str, TensorType]) -> None:
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type:
            rank = len(tensor.shape.dim) if tensor.HasField("shape") else None
            known[value.name] = TensorType(_dtype_name(tensor.elem_type), rank)
    for tensor in graph.initializer:
        known[tensor.name] = TensorType(_dtype_name(tensor.data_type), len(tensor.dims))
    for node in graph.node:
        for subgraph in _subgraphs(node):
            _collect(subgraph, known)

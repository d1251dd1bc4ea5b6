"""ONNX schemas of the ``npu::`` op types, for the checker, type inference and onnxscript."""

from __future__ import annotations

from typing import Any

import onnx

from .node_parts import Attribute, Input, Output
from .node_types import NodeType, all_node_types

_ATTRIBUTE_TYPES = {
    "int": onnx.defs.OpSchema.AttrType.INT,
    "float": onnx.defs.OpSchema.AttrType.FLOAT,
    "string": onnx.defs.OpSchema.AttrType.STRING,
    "ints": onnx.defs.OpSchema.AttrType.INTS,
    "floats": onnx.defs.OpSchema.AttrType.FLOATS,
    "strings": onnx.defs.OpSchema.AttrType.STRINGS,
}


def register_schemas() -> None:
    """Register every op type with ``onnx``, once per process."""
    for node_type in all_node_types().values():
        if not onnx.defs.has(node_type.type, 1, "npu"):
            onnx.defs.register_schema(make_schema(node_type))


def make_schema(node_type: NodeType) -> onnx.defs.OpSchema:
    """Return the schema of one op type."""
    from .inference import infer_node

    constraints: list[tuple[str, list[str], str]] = []
    inputs = [_parameter(x, i, node_type, constraints) for i, x in enumerate(node_type.inputs)]
    outputs = [_parameter(y, i, node_type, constraints) for i, y in enumerate(node_type.outputs)]
    schema = onnx.defs.OpSchema(
        node_type.type,
        "npu",
        1,
        doc=node_type.ops[0][1].doc,
        inputs=inputs,
        outputs=outputs,
        type_constraints=constraints,
        attributes=[_attribute(a) for a in node_type.attributes],
    )
    schema.set_type_and_shape_inference_function(lambda context: infer_node(node_type, context))
    return schema


def _parameter(
    argument: Input | Output,
    position: int,
    node_type: NodeType,
    constraints: list[tuple[str, list[str], str]],
) -> Any:
    options = onnx.defs.OpSchema.FormalParameterOption
    if argument.variadic:
        option = options.Variadic
    elif isinstance(argument, Input):
        optional = argument.optional or position >= node_type.min_inputs
        option = options.Optional if optional else options.Single
    else:
        option = options.Single if position == 0 else options.Optional
    kind = "in" if isinstance(argument, Input) else "out"
    variable = f"T_{kind}_{argument.name}"
    types = [f"tensor({_type_string(name)})" for name in argument.dtypes]
    constraints.append((variable, types, ""))
    return onnx.defs.OpSchema.FormalParameter(
        argument.name, variable, param_option=option, is_homogeneous=not argument.variadic
    )


def _type_string(name: str) -> str:
    return {"float32": "float", "float64": "double"}.get(name, name.replace("_", ""))


def _attribute(attribute: Attribute) -> onnx.defs.OpSchema.Attribute:
    type_ = _ATTRIBUTE_TYPES[attribute.kind]
    if attribute.required or attribute.default is None:
        return onnx.defs.OpSchema.Attribute(attribute.name, type_, "", required=attribute.required)
    default = onnx.helper.make_attribute(
        attribute.name, attribute.default, attr_type=int(_PROTO_TYPES[attribute.kind])
    )
    return onnx.defs.OpSchema.Attribute(attribute.name, default, "")


_PROTO_TYPES = {
    "int": onnx.AttributeProto.INT,
    "float": onnx.AttributeProto.FLOAT,
    "string": onnx.AttributeProto.STRING,
    "ints": onnx.AttributeProto.INTS,
    "floats": onnx.AttributeProto.FLOATS,
    "strings": onnx.AttributeProto.STRINGS,
}

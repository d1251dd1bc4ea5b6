"""Schemas of onnxruntime's own operators, by which onnx infers types and shapes behind them."""

from __future__ import annotations

from typing import Any

import onnx

from .rules.rule import MICROSOFT

# Of which every floating-point result has the shape of the first input; onnx infers what it reads
# then, such as how many heads an encoder has.
_SHAPE_OF_INPUT = (
    "BiasGelu",
    "FastGelu",
    "Gelu",
    "LayerNormalization",
    "QuickGelu",
    "RotaryEmbedding",
    "SimplifiedLayerNormalization",
    "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization",
)
# What onnxruntime has in ONNX's domain by itself, and the first opset in which ONNX has it, too.
OWN = {"LayerNormalization": 17, "SimplifiedLayerNormalization": None}
ASIDE = "onnxruntime.own"  # their domain while onnx raises the opset of all others


def register_microsoft_schemas() -> None:
    """Register with ``onnx`` what onnxruntime has and onnx has not, once per process."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    for own in get_all_operator_schema():
        if own.domain == MICROSOFT:
            _register(own, MICROSOFT)
        elif own.domain == "" and own.name in OWN and own.since_version == 1:
            _register(own, ASIDE)
            if OWN[own.name] is None:
                _register(own, "")


def _register(own: Any, domain: str) -> None:
    if onnx.defs.has(own.name, own.since_version, domain):
        return
    kinds = onnx.defs.OpSchema.AttrType
    schema = onnx.defs.OpSchema(
        own.name,
        domain,
        own.since_version,
        inputs=[_parameter(own_input) for own_input in own.inputs],
        outputs=[_parameter(own_output) for own_output in own.outputs],
        type_constraints=[
            (constraint.type_param_str, constraint.allowed_type_strs, "")
            for constraint in own.type_constraints
        ],
        attributes=[
            onnx.defs.OpSchema.Attribute(
                name, getattr(kinds, kind.type.name), "", required=kind.required
            )
            for name, kind in own.attributes.items()
        ],
    )
    inputs, outputs = ([p.typeStr for p in ps] for ps in (own.inputs, own.outputs))
    shaped = own.name in _SHAPE_OF_INPUT
    schema.set_type_and_shape_inference_function(
        lambda context: _infer(context, inputs, outputs, shaped)
    )
    onnx.defs.register_schema(schema)


def _parameter(own: Any) -> onnx.defs.OpSchema.FormalParameter:
    option = getattr(onnx.defs.OpSchema.FormalParameterOption, own.option.name)
    return onnx.defs.OpSchema.FormalParameter(
        own.name, own.typeStr, param_option=option, is_homogeneous=own.isHomogeneous
    )


def _infer(context: Any, inputs: list[str], outputs: list[str], shaped: bool) -> None:
    """Give each result the element type of the inputs that share its type variable."""
    known: dict[str, int] = {}
    for variable, i in zip(inputs, range(context.get_num_inputs()), strict=False):
        type_ = context.get_input_type(i)
        if type_ is not None and type_.tensor_type.elem_type:
            known.setdefault(variable, type_.tensor_type.elem_type)
    shape = _shape(context.get_input_type(0)) if shaped and context.get_num_inputs() else None
    for i, variable in zip(range(context.get_num_outputs()), outputs, strict=False):
        if variable not in known:
            continue
        made = onnx.TypeProto()
        made.tensor_type.elem_type = known[variable]
        if shape is not None and variable == inputs[0]:
            made.tensor_type.shape.CopyFrom(shape)
        context.set_output_type(i, made)


def _shape(type_: onnx.TypeProto | None) -> onnx.TensorShapeProto | None:
    stated = type_ is not None and type_.tensor_type.HasField("shape")
    return type_.tensor_type.shape if type_ is not None and stated else None

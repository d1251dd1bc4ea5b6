"""Schemas of onnxruntime's own operators, by which onnx infers types and shapes behind them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import onnx

from .rules.rule import MICROSOFT

Shape = list[onnx.TensorShapeProto.Dimension]
Shapes = dict[int, Shape]

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
    # The type of a norm's result is that of its weight; its statistics are of a third one.
    alike = [i for i, variable in enumerate(outputs) if i == 0 or variable == inputs[0]]
    shapes = partial(_first, alike) if own.name in _SHAPE_OF_INPUT else _SHAPES.get(own.name)
    schema.set_type_and_shape_inference_function(
        lambda context: _infer(context, inputs, outputs, shapes)
    )
    onnx.defs.register_schema(schema)


def _parameter(own: Any) -> onnx.defs.OpSchema.FormalParameter:
    option = getattr(onnx.defs.OpSchema.FormalParameterOption, own.option.name)
    return onnx.defs.OpSchema.FormalParameter(
        own.name, own.typeStr, param_option=option, is_homogeneous=own.isHomogeneous
    )


def _infer(
    context: Any, inputs: list[str], outputs: list[str], shapes: Callable[[Any], Shapes] | None
) -> None:
    """Give each result the element type of the inputs that share its type variable.

    ``shapes`` gives the shapes of the results, by position, that it knows.
    """
    known: dict[str, int] = {}
    for variable, i in zip(inputs, range(context.get_num_inputs()), strict=False):
        type_ = context.get_input_type(i)
        if type_ is not None and type_.tensor_type.elem_type:
            known.setdefault(variable, type_.tensor_type.elem_type)
    found = {} if shapes is None else shapes(context)
    for i, variable in zip(range(context.get_num_outputs()), outputs, strict=False):
        if variable not in known:
            continue
        made = onnx.TypeProto()
        made.tensor_type.elem_type = known[variable]
        if i in found:
            made.tensor_type.shape.dim.extend(found[i])
        context.set_output_type(i, made)


def _first(alike: list[int], context: Any) -> Shapes:
    shape = _shape(context, 0)
    return {} if shape is None else dict.fromkeys(alike, shape)


def _embedded(context: Any) -> Shapes:
    """Return those of EmbedLayerNormalization: the norm, the lengths of rows, and the sum."""
    ids, words = _shape(context, 0), _shape(context, 2)
    if ids is None or words is None or len(ids) != 2 or len(words) != 2:
        return {}
    rows = [*ids, words[1]]
    return {0: rows, 1: ids[:1], 2: rows}


def _attended(context: Any) -> Shapes:
    """Return that of Attention, whose weight has the columns of queries, keys and values."""
    x, weight = _shape(context, 0), _shape(context, 1)
    sizes = context.get_attribute("qkv_hidden_sizes")
    if x is None or weight is None or len(x) != 3 or len(weight) != 2:
        return {}
    columns = sizes.ints[2] if sizes is not None and len(sizes.ints) == 3 else None
    columns = weight[1].dim_value // 3 if columns is None else columns
    return {0: [*x[:2], onnx.TensorShapeProto.Dimension(dim_value=columns)]} if columns else {}


_SHAPES: dict[str, Callable[[Any], Shapes]] = {
    "Attention": _attended,
    "EmbedLayerNormalization": _embedded,
}


def _shape(context: Any, i: int) -> Shape | None:
    if i >= context.get_num_inputs():
        return None
    type_ = context.get_input_type(i)
    stated = type_ is not None and type_.tensor_type.HasField("shape")
    return list(type_.tensor_type.shape.dim) if type_ is not None and stated else None

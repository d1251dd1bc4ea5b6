"""Translation of the operators for ``torch.onnx.export``: bare nodes of domain ``npu``.

Bodies are attached to the finished model (attach.py), because the exporter's optimizer would inline
existing functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import onnxscript
import torch

from .definition import Op
from .discovery import all_ops
from .function_body import IR_ATTRIBUTE_TYPES
from .node_parts import Attribute
from .onnx_schema import register_schemas
from .schema import Schema
from .torch_library import functional_schema, register


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the table for ``torch.onnx.export(..., custom_translation_table=...)``.

    Every torch name of every operator is in it; in-place twins become the functional node.
    """
    register()
    register_schemas()
    table = {}
    for op in all_ops().values():
        for schema in op.torch_schemas():
            table[getattr(torch.ops.npu, schema.name).default] = _translator(op, schema)
        functional = functional_schema(op)
        if functional:
            table[getattr(torch.ops.npu, op.name).functional] = _translator(op, functional)
    return table


def _translator(op: Op, schema: Schema) -> Callable[..., Any]:
    emit = getattr(onnxscript.values.Opset("npu", 1), op.onnx_type)
    result_count = len(schema.returns)

    def translate(*args: Any, **kwargs: Any) -> Any:
        bound = op.bind(args, kwargs)
        inputs: list[Any] = []
        for node_input, value in op.iterate_inputs(bound):
            if node_input.variadic:
                inputs += value or []
            elif node_input.is_list_of_ints and isinstance(value, Sequence):
                inputs.append(_int_list(value))
            else:
                inputs.append(value)
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes = {}
        for attribute in op.attributes:
            value = _attribute(attribute, bound[attribute.argument.name])
            if value is not None:
                attributes[attribute.name] = value
        outputs = emit(*inputs, **attributes)
        outputs = [outputs] if isinstance(outputs, ir.Value) else list(outputs)
        # The op type may have more outputs than the operator if other operators share it.
        outputs[0].producer().resize_outputs(len(op.outputs))
        return outputs[0] if result_count == 1 else tuple(outputs[:result_count])

    translate.__name__ = schema.name
    return translate


def _attribute(attribute: Attribute, value: Any) -> ir.Attr | None:
    # The exporter passes -1 for an absent argument named dtype.
    if attribute.name == "dtype" and attribute.argument.type.optional and value == -1:
        value = None
    plain = attribute.to_onnx(value)
    if plain is None:
        return None
    return ir.Attr(attribute.name, IR_ATTRIBUTE_TYPES[attribute.kind], plain)


def _int_list(values: Sequence[Any]) -> Any:
    """Return a 1-D int64 tensor of numbers and traced scalars."""
    op: Any = onnxscript.opset18
    if all(isinstance(v, int) for v in values):
        return op.Constant(value=ir.tensor(list(values), dtype=ir.DataType.INT64))
    parts = [
        op.Constant(value_ints=[v])
        if isinstance(v, int)
        else op.Reshape(v, op.Constant(value_ints=[-1]))
        for v in values
    ]
    return op.Concat(*parts, axis=0) if len(parts) > 1 else parts[0]

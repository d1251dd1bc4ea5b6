"""Shapes and types that onnx infers, also of values that are no tensors."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass
from onnxruntime_npu.onnx_models.strings import without_strings

# What makes a value that is no tensor of values that are; others only hand it on.
_MAKERS = frozenset(
    {"Optional", "SequenceConstruct", "SequenceEmpty", "SequenceMap", "SplitToSequence"}
)
_LARGEST = 1024  # elements of weights that inference may read, such as shapes and axes


def infer_shapes(model: ir.Model) -> None:
    """Add the shapes and types that onnx infers; what it cannot infer stays unknown."""
    _state_containers(model)
    with without_strings(model):
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)


def _state_containers(model: ir.Model) -> None:
    """Give sequences and optional values their types: the pass makes tensors of the untyped."""
    if not any(map(_is_container, model.graph.inputs)) and not any(
        node.op_type in _MAKERS and not node.domain for node in model.graph.all_nodes()
    ):
        return
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(_without_weights(model)))
    for graph, known in zip(model.graphs(), inferred.graphs(), strict=True):
        types = {
            name: value.type
            for name, value in ir.convenience.create_value_mapping(known).items()
            if _is_container(value)
        }
        for name, value in ir.convenience.create_value_mapping(graph).items():
            if name in types and not _is_container(value):
                value.type = types[name]


def _is_container(value: ir.Value) -> bool:
    return value.type is not None and not isinstance(value.type, ir.TensorType)


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    """Return the model with references in place of large weights, which nothing reads."""
    copy = model.clone()
    for graph in copy.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.size > _LARGEST:
                value.const_value = ir.ExternalTensor(
                    "weights",
                    0,
                    0,
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=value.name or "",
                )
    return ir.to_proto(copy)

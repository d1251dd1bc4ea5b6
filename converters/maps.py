"""Maps, as classifiers of scikit-learn give probabilities: onnx_ir has no such values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnxruntime_npu.errors import ExportError


@dataclass
class Map:
    """The node that makes a map of a tensor, its opset, and the model's output that it is."""

    node: onnx.NodeProto
    opset: onnx.OperatorSetIdProto
    output: onnx.ValueInfoProto


def take_maps(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[Map]]:
    """Return the model with the tensors as outputs of which it makes maps, and what was taken.

    The model itself if it has none. Raises ExportError for maps that are no outputs of a ZipMap.
    """
    if not any(map(_is_map, _types(model.graph))):
        return model, []
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    makers = {name: node for node in graph.node for name in node.output}
    read = {name for node in graph.node for name in node.input}
    names = {output.name for output in graph.output}
    taken = []
    for output in graph.output:
        node = makers.get(output.name)
        zips = node is not None and node.op_type == "ZipMap"
        if node is None or not zips or output.name in read or node.input[0] in names:
            continue
        made = Map(onnx.NodeProto(), onnx.OperatorSetIdProto(), onnx.ValueInfoProto())
        made.node.CopyFrom(node)
        made.opset.CopyFrom(next(o for o in copy.opset_import if o.domain == node.domain))
        made.output.CopyFrom(output)
        taken.append(made)
        graph.node.remove(node)
        output.CopyFrom(onnx.ValueInfoProto(name=node.input[0]))
    for value in [v for v in graph.value_info if v.name in {made.output.name for made in taken}]:
        graph.value_info.remove(value)
    if any(map(_is_map, _types(graph))):
        raise ExportError(
            "expected tensors, sequences and optional values, got a map, which is no output of a "
            "ZipMap: export the model without it, skl2onnx with options={'zipmap': False}"
        )
    return copy, taken


def put_maps(model: onnx.ModelProto, taken: list[Map]) -> None:
    """Make the maps again, in place, of the outputs that are their tensors."""
    for made in taken:
        (output,) = (o for o in model.graph.output if o.name == made.node.input[0])
        if output.type.WhichOneof("value") is not None:
            model.graph.value_info.add().CopyFrom(output)
        output.CopyFrom(made.output)
        model.graph.node.append(made.node)
        if made.opset.domain not in {opset.domain for opset in model.opset_import}:
            model.opset_import.append(made.opset)


def _types(graph: onnx.GraphProto) -> Iterator[onnx.TypeProto]:
    for values in (graph.input, graph.value_info, graph.output):
        for value in values:
            yield value.type


def _is_map(kind: onnx.TypeProto) -> bool:
    if kind.WhichOneof("value") == "sequence_type":
        return _is_map(kind.sequence_type.elem_type)
    return kind.WhichOneof("value") == "map_type"

"""Sparse constants of a file, which become dense ones: the NPU multiplies by no others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper


def make_dense(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with dense constants only; itself if it has no others."""
    if not any(_has_sparse(graph) for graph in _graphs(model.graph)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in _graphs(copy.graph):
        graph.initializer.extend(_dense(tensor) for tensor in graph.sparse_initializer)
        del graph.sparse_initializer[:]
        for attribute in _sparse_attributes(graph):
            tensor = _dense(attribute.sparse_tensor)
            attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
    return copy


def _has_sparse(graph: onnx.GraphProto) -> bool:
    return bool(graph.sparse_initializer) or any(_sparse_attributes(graph))


def _sparse_attributes(graph: onnx.GraphProto) -> Iterator[onnx.AttributeProto]:
    for node in graph.node:
        if node.op_type == "Constant" and not node.domain:
            yield from (a for a in node.attribute if a.name == "sparse_value")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    values = numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    shape = tuple(sparse.dims)
    dense = np.zeros(shape, values.dtype)
    # Each index is a number in the flat tensor, or one for each axis.
    at = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), shape)
    dense.reshape(-1)[at] = values
    tensor = numpy_helper.from_array(dense, sparse.values.name)
    tensor.data_type = sparse.values.data_type
    return tensor

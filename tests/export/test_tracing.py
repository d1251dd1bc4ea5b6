"""From a module to a graph: sizes that vary do so in the graph, and constants are all in it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter.tracing import onnx_model_of


class Repeated(torch.nn.Module):
    """Repeats a row as often as there are rows, which it counts by ``count``."""

    input_names, output_names = ("x",), ("y",)

    def __init__(self, count):
        super().__init__()
        self._count = count

    def forward(self, *inputs):
        (x,) = inputs
        return x[:1].expand(self._count(x), -1).contiguous()

    def dimensions(self):
        return {"x": ("rows", 3), "y": ("rows", 3)}


def test_a_size_that_is_read_as_a_number_is_refused():
    """Torch takes such a size for a constant, and a graph of it computes for two rows alone."""
    example = (torch.ones(2, 3),)
    model = onnx_model_of(Repeated(lambda x: x.shape[0]), example, 18)
    assert [str(size) for size in model.graph.inputs[0].shape] == ["rows", "3"]
    with pytest.raises(ExportError, match="x expected 'rows' of any size, got 2 only"):
        onnx_model_of(Repeated(len), example, 18)


class Clamped(torch.nn.Module):
    """Clamps a sum twice, by bounds that are tensors and differ."""

    input_names, output_names = ("x",), ("y",)

    def forward(self, *inputs):
        doubled = inputs[0] + inputs[0]
        bounds = map(torch.tensor, (-1.0, 1.0, -3.0, 2.0))
        low, high, lower, higher = bounds
        return torch.clamp(doubled, low, high) + torch.clamp(doubled, lower, higher)

    def dimensions(self):
        return {"x": ("rows", 3), "y": ("rows", 3)}


def test_two_clamps_of_one_value_keep_the_bounds_of_each():
    """The optimizer gives the bounds of both the same names."""
    x = torch.linspace(-4, 4, 6).reshape(2, 3)
    model = ir.to_proto(onnx_model_of(Clamped(), (x,), 18)).SerializeToString()
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    (actual,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_array_equal(actual, Clamped()(x).numpy())

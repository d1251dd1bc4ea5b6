"""From a module to a graph: sizes that vary do so in the graph."""

from __future__ import annotations

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

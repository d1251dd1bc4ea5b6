"""Leftovers of tracing are removed, and nothing else."""

from __future__ import annotations

import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from onnxruntime_npu.exporter.tracing import to_onnx, trace
from onnxruntime_npu.onnx_models import graph_passes
from torch import nn


class Transposed(nn.Module):
    """x + 1 in two orders of axes, one after the other, times 2."""

    def __init__(self, first: tuple[int, ...], second: tuple[int, ...], *, used: bool) -> None:
        super().__init__()
        self.first, self.second, self.used = first, second, used

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inner = (x + 1).permute(self.first)
        result = inner.permute(self.second) * 2
        return (result, inner) if self.used else (result,)


@pytest.mark.parametrize(
    ("first", "second", "used", "left"),
    [
        ((0, 2, 1, 3), (0, 2, 1, 3), False, 0),
        ((1, 2, 0, 3), (2, 0, 1, 3), False, 0),
        ((0, 2, 1, 3), (0, 2, 1, 3), True, 1),  # its result is an output, too
        ((1, 2, 0, 3), (1, 2, 0, 3), False, 1),  # joined: together they are no identity
    ],
)
def test_only_transposes_that_undo_each_other_are_dropped(first, second, used, left):
    module, x = Transposed(first, second, used=used), torch.randn(2, 3, 4, 5)
    model = to_onnx(trace(module, (x,), None, None), 18)
    graph_passes.tidy(model.graph)
    assert graph_passes.count_nodes(model.graph).get("Transpose", 0) == left
    reference = ir.to_proto(model)
    evaluated = ReferenceEvaluator(reference).run(None, {model.graph.inputs[0].name: x.numpy()})
    for actual, expected in zip(evaluated, module(x), strict=True):
        torch.testing.assert_close(torch.from_numpy(actual), expected)

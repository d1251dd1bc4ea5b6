"""Additions are joined with the norm of their sum where the operator computes both."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnxruntime_npu.exporter.tracing import to_onnx, trace
from onnxruntime_npu.onnx_models.fuse_added_norms import fuse_added_norms
from onnxruntime_npu.opdef import torch_library


class Block(torch.nn.Module):
    """norm(x + r), and what else uses the sum."""

    def __init__(self, rows: int, *, weight: bool = True) -> None:
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.rand(8))
        self.residual = torch.nn.Parameter(torch.randn(rows, 8))
        self.weight = weight

    def forward(self, x):
        total = x + self.residual
        gamma = self.gamma if self.weight else self.gamma * x.mean()
        return torch.ops.npu.npu_rms_norm(total, gamma, 1e-6)[0], total * 2, total


def graph_of(module, x):
    torch_library.register()
    return to_onnx(trace(module, (x,), None, None), 18)


def test_sum_and_norm_become_one_node_and_the_sum_stays_an_output(tmp_path):
    import onnxruntime as ort
    from onnxruntime_npu.opdef.attach import attach_function_bodies

    x, module = torch.randn(4, 8), Block(4)
    model = graph_of(module, x)
    assert fuse_added_norms(model.graph) == 1
    types = [node.op_type for node in model.graph]
    assert "NPUAddRmsNorm" in types and not {"Add", "NPURmsNorm"} & set(types)
    attach_function_bodies(model)
    ir.save(model, tmp_path / "model.onnx")
    for provider in ("NPUExecutionProvider", "CPUExecutionProvider"):
        session = ort.InferenceSession(tmp_path / "model.onnx", providers=[provider])
        got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        for actual, expected in zip(got, module(x), strict=True):
            np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("module", [Block(1), Block(4, weight=False)], ids=["broadcast", "gamma"])
def test_broadcast_sums_and_computed_weights_are_left(module):
    model = graph_of(module, torch.randn(4, 8))
    assert fuse_added_norms(model.graph) == 0
    assert {"Add", "NPURmsNorm"} <= {node.op_type for node in model.graph}

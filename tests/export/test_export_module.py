"""Export of arbitrary torch modules that call npu:: operators."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError, ExportError

PROVIDERS = ["NPUExecutionProvider", "CPUExecutionProvider"]


class Gated(torch.nn.Module):
    """A norm, a projection and a gate, in torch_npu's spelling."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gamma = torch.nn.Parameter(torch.rand(16))
        self.project = torch.nn.Linear(16, 24)

    def forward(self, x, shift=None):
        y, _ = torch.ops.npu.npu_rms_norm(x, self.gamma, epsilon=1e-5)
        y = torch.ops.npu.npu_swiglu(self.project(y), dim=-1)
        return y if shift is None else y + shift


@pytest.mark.parametrize("provider", PROVIDERS)
def test_exported_module_agrees_on_every_provider(tmp_path, provider):
    model, x = Gated().eval(), torch.randn(3, 5, 16)
    path = tmp_path / "gated.onnx"
    shapes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}}
    report = onnxruntime_npu.export(model, (x,), path, dynamic_shapes=shapes)
    assert report.nodes["npu::NPURmsNorm"] == 1 and report.nodes["npu::NPUSwiGlu"] == 1
    assert report.without_body == []
    assert report.inputs == [{"name": "x", "dtype": "float", "shape": ["batch", "sequence", 16]}]
    written = json.loads((tmp_path / "gated.onnx.report.json").read_text())
    assert written["nodes"] == report.nodes
    session = ort.InferenceSession(path, providers=[provider])
    for shape in ((3, 5, 16), (1, 1, 16), (2, 9, 16)):
        given = torch.randn(shape)
        with torch.no_grad():
            expected = model(given).numpy()
        actual = session.run(None, {"x": given.numpy()})[0]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_keyword_arguments_and_dtype(tmp_path):
    model, x = Gated(), torch.randn(2, 16)
    path = tmp_path / "gated.onnx"
    report = onnxruntime_npu.export(
        model, (x,), path, kwargs={"shift": torch.ones(12)}, dtype="float16"
    )
    assert report.dtype == "float16"
    assert model.gamma.dtype == torch.float32
    kinds = {v.type.tensor_type.elem_type for v in onnx.load(path).graph.input}
    assert kinds == {onnx.TensorProto.FLOAT16}


def test_data_dependent_branch_cannot_be_traced(tmp_path):
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(ExportError, match=r"torch.export cannot trace Branch"):
        onnxruntime_npu.export(Branch(), (torch.ones(2),), tmp_path / "b.onnx")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": len}, "expected a torch.nn.Module, got builtin_function_or_method"),
        ({"args": torch.ones(2)}, "expected args to be a tuple, got Tensor"),
        ({"path": "nowhere/model.onnx"}, "no such directory to write to: nowhere"),
        ({"dtype": "int8"}, "expected dtype float32, float16 or bfloat16, got 'int8'"),
        ({"opset": 5}, "expected an opset from 18 to 23, got 5"),
    ],
)
def test_bad_arguments(tmp_path, change, message):
    call = {"model": Gated(), "args": (torch.ones(2, 16),), "path": tmp_path / "m.onnx", **change}
    with pytest.raises(ArgumentError, match=message):
        onnxruntime_npu.export(call.pop("model"), call.pop("args"), call.pop("path"), **call)


class Largest(torch.nn.Module):
    def forward(self, x):
        values, indices = torch.topk(x, 3)
        return values, indices, values.round() * 2


def test_operators_that_onnx_has_not_for_bfloat16_run_in_float32(tmp_path):
    x = (torch.randn(4, 32) * 5).bfloat16()
    onnxruntime_npu.export(Largest(), (x,), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    assert [node.op_type for node in model.graph.node if node.op_type in ("TopK", "Round")] == [
        "TopK",
        "Round",
    ]
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["NPUExecutionProvider"])
    assert [output.type for output in session.get_outputs()] == [
        "tensor(bfloat16)",
        "tensor(int64)",
        "tensor(bfloat16)",
    ]
    binding = session.io_binding()
    given = onnxruntime_npu.ortvalue_from_numpy(x.float().numpy().astype(ml_dtypes.bfloat16))
    binding.bind_ortvalue_input(session.get_inputs()[0].name, given)
    for output in session.get_outputs():
        binding.bind_output(output.name, "npu")
    session.run_with_iobinding(binding)
    got = [onnxruntime_npu.ortvalue_to_numpy(value) for value in binding.get_outputs()]
    for actual, expected in zip(got, Largest()(x), strict=True):
        np.testing.assert_array_equal(actual.astype(np.float32), expected.float().numpy())

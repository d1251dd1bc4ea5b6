"""Float16 by onnxruntime's tool: before a conversion, or after the way back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from comparison import PROVIDERS, model_of, normal, run
from onnx import helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime_npu.converters import convert, inline


@pytest.mark.parametrize("converted_before", [False, True])
def test_float16_files_are_converted(tmp_path, converted_before):
    nodes = [
        helper.make_node("RMSNormalization", ["x", "gamma"], ["normed"], epsilon=1e-5),
        helper.make_node("MatMul", ["normed", "w"], ["y"]),
    ]
    x, gamma, w = normal(2, 3, 16), normal(16, seed=4), normal(16, 8, seed=5)
    model = model_of(nodes, {"x": x}, {"y": np.float32}, {"gamma": gamma, "w": w}, opset=23)
    if converted_before:
        convert(model, tmp_path / "float32.onnx")
        inline(tmp_path / "float32.onnx", tmp_path / "plain.onnx")
        model = onnx.load(tmp_path / "plain.onnx")
    report = convert(convert_float_to_float16(model), tmp_path / "fused.onnx")
    assert report.nodes["npu::NPURmsNorm"] == 1
    wide = x.astype(np.float64)
    expected = (wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * gamma) @ w
    for provider in PROVIDERS:
        (y,) = run(tmp_path / "fused.onnx", provider, {"x": x.astype(np.float16)})
        assert y.dtype == np.float16
        # Operands, norms and sums are rounded to 11 bits: some parts in a thousand of the largest.
        np.testing.assert_allclose(y, expected, rtol=0, atol=3e-3 * np.abs(expected).max())

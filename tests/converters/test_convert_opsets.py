"""Files of older opsets and formats compute after a conversion what they did before."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from comparison import MICROSOFT, PROVIDERS, TOLERANCE, model_of, normal, run
from onnx import helper
from onnxruntime_npu.converters import convert, inline
from onnxruntime_npu.errors import ExportError


def check_same(model, folder, inputs, converted_type=None):
    """Compare the converted file, and the inlined one, with the original."""
    onnx.save(model, folder / "source.onnx")
    report = convert(folder / "source.onnx", folder / "fused.onnx")
    inline(folder / "fused.onnx", folder / "plain.onnx")
    expected = run(folder / "source.onnx", PROVIDERS[1], inputs)
    runs = [
        ("fused.onnx", PROVIDERS[0]),
        ("fused.onnx", PROVIDERS[1]),
        ("plain.onnx", PROVIDERS[1]),
    ]
    for name, provider in runs:
        onnx.checker.check_model(folder / name)
        for actual, wanted in zip(run(folder / name, provider, inputs), expected, strict=True):
            bound = TOLERANCE[np.float32] * max(1.0, float(np.abs(wanted).max()))
            np.testing.assert_allclose(actual, wanted, rtol=0, atol=bound, err_msg=name)
    assert converted_type is None or converted_type in report.nodes
    return report


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, "n", 4)])
@pytest.mark.parametrize("axis", [None, 0, 2, -2])
@pytest.mark.parametrize("op_type", ["Hardmax", "Softmax"])
def test_maxima_over_all_axes_from_one_on(tmp_path, op_type, axis, shape):
    """Before opset 13 they are over that axis and all behind it."""
    node = helper.make_node(op_type, ["x"], ["y"], **({} if axis is None else {"axis": axis}))
    inputs = {"x": normal(2, 3, 4)}
    model = model_of([node], inputs, {"y": np.float32}, opset=11)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, shape))
    check_same(model, tmp_path, inputs)


@pytest.mark.parametrize(
    ("op_type", "opset", "mode", "factors"),
    [
        ("Upsample", 9, "linear", [2.0, 3.0]),
        ("Upsample", 9, "nearest", [1.5, 2.6]),
        ("Resize", 10, "linear", [2.0, 1.4]),
        ("Resize", 10, "nearest", [2.6, 1.4]),
        ("Resize", 10, "nearest", [0.6, 0.4]),
    ],
)
def test_resized_as_before_opset_11(tmp_path, op_type, opset, mode, factors):
    """Samples of opset 10 begin at the corner, those of opset 11 half a sample off it."""
    node = helper.make_node(op_type, ["x", "scales"], ["y"], mode=mode)
    inputs = {"x": normal(1, 2, 8, 9)}
    scales = {"scales": np.array([1.0, 1.0, *factors], np.float32)}
    check_same(model_of([node], inputs, {"y": np.float32}, scales, opset=opset), tmp_path, inputs)


def test_resized_in_two_directions_is_refused(tmp_path):
    """The nearest sample is before or behind, which opset 11 cannot say of each axis."""
    node = helper.make_node("Resize", ["x", "scales"], ["y"])
    scales = {"scales": np.array([1, 1, 2, 0.5], np.float32)}
    inputs = {"x": normal(1, 2, 4, 4)}
    model = model_of([node], inputs, {"y": np.float32}, scales, opset=10)
    with pytest.raises(ExportError, match=r"\[Resize\] expected constant scales that all enlarge"):
        convert(model, tmp_path / "out.onnx")


def test_values_of_inputs_may_be_replaced(tmp_path):
    """No rule takes the value that an input has in the file for a constant."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["gate"]),
        helper.make_node("Sigmoid", ["gate"], ["s"]),
        helper.make_node("Mul", ["gate", "s"], ["silu"]),
        helper.make_node("MatMul", ["x", "u"], ["up"]),
        helper.make_node("Mul", ["silu", "up"], ["product"]),
        helper.make_node("Add", ["product", "zero"], ["y"]),
    ]
    x, zero = normal(3, 8), np.zeros(1, np.float32)
    weights = {"w": normal(8, 8, seed=1), "u": normal(8, 8, seed=2), "zero": zero}
    model = model_of(nodes, {"x": x} | weights, {"y": np.float32}, weights)
    for inputs in ({"x": x}, {"x": x, "w": weights["u"]}, {"x": x, "zero": zero + 1}):
        check_same(model, tmp_path, inputs)
    written = onnx.load(tmp_path / "plain.onnx", load_external_data=False).graph
    assert [value.name for value in written.input] == ["x", "w", "u", "zero"]


def test_initializers_of_old_files_are_no_inputs(tmp_path):
    """In formats before 4 initializers had to be inputs, too, without being replaceable."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["z"]),
        helper.make_node("QuickGelu", ["z"], ["y"], domain=MICROSOFT),
    ]
    x = normal(3, 8)
    weights = {"w": normal(8, 8, seed=1), "b": normal(8, seed=2)}
    model = model_of(nodes, {"x": x} | weights, {"y": np.float32}, weights, opset=11)
    model.ir_version = 3
    check_same(model, tmp_path, {"x": x}, "npu::NPUFastGelu")
    written = onnx.load(tmp_path / "fused.onnx", load_external_data=False)
    assert [value.name for value in written.graph.input] == ["x"]
    assert written.ir_version >= 8


def test_a_given_model_is_left_unchanged(tmp_path):
    node = helper.make_node("ReduceSum", ["x"], ["y"], axes=[1])
    inputs = {"x": normal(2, 3)}
    proto = model_of([node], inputs, {"y": np.float32}, opset=11)
    model = ir.from_proto(proto)
    before = ir.to_proto(model).SerializeToString()
    convert(model, tmp_path / "out.onnx")
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize(
    ("op_type", "opset", "becomes"),
    [
        ("LayerNormalization", 14, "LayerNormalization"),
        ("SimplifiedLayerNormalization", 14, "npu::NPURmsNorm"),
        ("SimplifiedLayerNormalization", 17, "npu::NPURmsNorm"),
    ],
)
def test_norms_that_onnxruntime_has_of_any_opset(tmp_path, op_type, opset, becomes):
    """Its optimizer writes them into ONNX's domain, where opset 14 has none."""
    nodes = [
        helper.make_node(op_type, ["x", "gamma"], ["normed"], epsilon=1e-4),
        helper.make_node("MatMul", ["normed", "w"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    inputs = {"x": normal(2, 3, 16)}
    weights = {"gamma": normal(16), "w": normal(16, 8)}
    model = model_of(nodes, inputs, {"y": np.float32}, weights, opset=opset)
    onnx.save(model, tmp_path / "source.onnx")
    expected = run(tmp_path / "source.onnx", PROVIDERS[1], inputs)[0]
    report = convert(tmp_path / "source.onnx", tmp_path / "fused.onnx")
    assert becomes in report.nodes
    for provider in PROVIDERS:
        actual = run(tmp_path / "fused.onnx", provider, inputs)[0]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)

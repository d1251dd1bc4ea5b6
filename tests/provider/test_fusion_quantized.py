"""DequantizeLinear, an operator and QuantizeLinear become the operator on integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
import pytest
from calibration_images import Images
from fusion_models import fused_nodes, model_of, node, run_both
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from provider_models import CPU, NPU

MICROSOFT = "com.microsoft:"
SCALE = np.float32(0.05)
X, OTHER, Y = (np.array(s, np.float32) for s in (SCALE, 0.03, 0.2))


def quantised(name: str, source: str, scale: str, point: str) -> list[onnx.NodeProto]:
    """Quantise a float and take it back, as between any two operators."""
    return [
        node("QuantizeLinear", f"{source} {scale} {point}", f"{name}_q"),
        node("DequantizeLinear", f"{name}_q {scale} {point}", name),
    ]


def points(dtype: type) -> dict[str, np.ndarray]:
    return {f"{n}z": np.array(v, dtype) for n, v in {"x": 3, "o": 7, "y": 5}.items()}


def run(
    middle: list[onnx.NodeProto], feeds: dict, constants: dict, dtype: type, result: bool = True
):
    """Runs `middle`, from x (and o) to m, between DequantizeLinear and QuantizeLinear."""
    constants = constants | points(dtype) | {"xs": X, "os": OTHER, "ys": Y}
    nodes = quantised("x_d", "x", "xs", "xz")
    nodes += quantised("o_d", "o", "os", "oz") if "o" in feeds else []
    nodes += middle
    nodes += quantised("y", "m", "ys", "yz") if result else [node("Identity", "m", "y")]
    used = {name for n in nodes for name in n.input}
    constants = {name: value for name, value in constants.items() if name in used}
    return run_both(model_of(nodes, feeds, constants), feeds)


def assert_within_a_step(fused, plain, step: float = float(Y)) -> None:
    # A value halfway between two integers may become either.
    np.testing.assert_allclose(fused, plain, rtol=0, atol=1.01 * step)
    assert np.mean(np.abs(fused - plain) > 1e-6) < 0.02 and np.ptp(plain) > 10 * step


def weight(rng, shape: tuple[int, ...], channels: int | None, x_scale=SCALE) -> dict:
    """Integers w of a weight and b of a bias, with a scale for each of some channels, or one."""
    each = channels or 1
    scales = rng.uniform(0.005, 0.02, each).astype(np.float32)
    made = {
        "w": rng.integers(-127, 128, shape).astype(np.int8),
        "ws": scales if channels else scales[0],
        "wz": np.zeros(each, np.int8) if channels else np.array(0, np.int8),
        "b": rng.integers(-500, 500, channels or shape[0]).astype(np.int32),
        "bs": x_scale * scales if channels else x_scale * scales[0],
        "bz": np.zeros(each, np.int32) if channels else np.array(0, np.int32),
    }
    return {name: np.asarray(value) for name, value in made.items()}


def weights(axis: int, bias: bool = True) -> list[onnx.NodeProto]:
    nodes = [node("DequantizeLinear", "w ws wz", "w_d", axis=axis)]
    return [*nodes, node("DequantizeLinear", "b bs bz", "b_d", axis=0)] if bias else nodes


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("channels", [None, 6])
@pytest.mark.parametrize("bias", [False, True])
def test_convolution(rng, bias, channels, dtype):
    constants = weight(rng, (6, 4, 3, 3), channels)
    feeds = {"x": rng.normal(0, 2, (2, 4, 9, 10)).astype(np.float32)}
    conv = node("Conv", "x_d w_d b_d" if bias else "x_d w_d", "m", pads=[1] * 4, strides=[2, 1])
    (fused,), (plain,), groups = run([*weights(0, bias), conv], feeds, constants, dtype)
    members = ["x_d", "w_d", "m", "y_q", *(["b_d"] if bias else [])]
    assert groups == dict.fromkeys(members, "QLinearConv")
    assert_within_a_step(fused, plain)


@pytest.mark.parametrize("channels", [None, 6])
@pytest.mark.parametrize("result", [False, True])
def test_products(rng, result, channels):
    feeds = {"x": rng.normal(0, 2, (5, 8)).astype(np.float32)}
    middle = [*weights(1, False), node("MatMul", "x_d w_d", "m")]
    constants = weight(rng, (8, 6), channels)
    (fused,), (plain,), groups = run(middle, feeds, constants, np.uint8, result)
    kind = "QLinearMatMul" if result else MICROSOFT + "MatMulIntegerToFloat"
    assert groups == dict.fromkeys(["x_d", "w_d", "m", *(["y_q"] if result else [])], kind)
    if result:
        assert_within_a_step(fused, plain)
    else:
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("result", [False, True])
def test_gemm(rng, result, turned):
    feeds = {"x": rng.normal(0, 2, (5, 8)).astype(np.float32)}
    constants = weight(rng, (6, 8) if turned else (8, 6), 6)
    gemm = node("Gemm", "x_d w_d b_d", "m", transB=turned)
    middle = [*weights(1 - turned), gemm]
    (fused,), (plain,), groups = run(middle, feeds, constants, np.int8, result)
    members = ["x_d", "w_d", "b_d", "m", *(["y_q"] if result else [])]
    assert groups == dict.fromkeys(members, MICROSOFT + "QGemm")
    if result:
        assert_within_a_step(fused, plain)
    else:
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("middle, kind", [
    (node("Add", "x_d o_d", "m"), "QLinearAdd"),
    (node("Mul", "x_d o_d", "m"), "QLinearMul"),
    (node("Concat", "x_d o_d", "m", axis=1), "QLinearConcat"),
    (node("Sigmoid", "x_d", "m"), "QLinearSigmoid"),
    (node("LeakyRelu", "x_d", "m", alpha=0.3), "QLinearLeakyRelu"),
    (node("AveragePool", "x_d", "m", kernel_shape=[2, 2]), "QLinearAveragePool"),
    (node("GlobalAveragePool", "x_d", "m"), "QLinearGlobalAveragePool"),
    (node("Softmax", "x_d", "m", axis=1), "QLinearSoftmax"),
], ids=lambda v: v if isinstance(v, str) else "")  # fmt: skip
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_other_operators(rng, dtype, middle, kind):
    feeds = {"x": rng.normal(0, 2, (2, 4, 5, 6)).astype(np.float32)}
    if "o_d" in middle.input:
        feeds["o"] = rng.normal(0, 1, (2, 4, 5, 6)).astype(np.float32)
    (fused,), (plain,), groups = run([middle], feeds, {}, dtype)
    assert set(groups.values()) == {MICROSOFT + kind} and {"m", "y_q", "x_d"} <= set(groups)
    np.testing.assert_allclose(fused, plain, rtol=0, atol=1.01 * float(Y))


@pytest.mark.parametrize("middle", [
    node("MaxPool", "x_d", "m", kernel_shape=[2, 2]),
    node("Transpose", "x_d", "m", perm=[0, 2, 3, 1]),
    node("Reshape", "x_d shape", "m"),
    node("Flatten", "x_d", "m"),
], ids=lambda n: n.op_type)  # fmt: skip
@pytest.mark.parametrize("equal", [True, False])
def test_elements_that_only_move(rng, equal, middle):
    feeds = {"x": rng.normal(0, 2, (2, 4, 6, 6)).astype(np.float32)}
    constants = {"xs": X, "xz": np.array(3, np.int8), "shape": np.array([2, -1])}
    constants |= {"ys": X if equal else Y, "yz": np.array(3, np.int8)}
    nodes = [*quantised("x_d", "x", "xs", "xz"), middle, *quantised("y", "m", "ys", "yz")]
    used = {name for n in nodes for name in n.input}
    constants = {name: value for name, value in constants.items() if name in used}
    (fused,), (plain,), groups = run_both(model_of(nodes, feeds, constants), feeds)
    np.testing.assert_array_equal(fused, plain)
    assert groups == (dict.fromkeys(["x_d", "m", "y_q"], middle.op_type) if equal else {})


@pytest.mark.parametrize("change", ["scale of the bias", "axis", "zero points of the bias"])
def test_other_meanings_are_left_alone(rng, change):
    constants = weight(rng, (4, 4, 3, 3), 4)
    if change == "scale of the bias":
        constants["bs"] = constants["bs"] * np.float32(1.001)
    if change == "zero points of the bias":
        constants["bz"] = np.ones(4, np.int32)
    middle = [*weights(1 if change == "axis" else 0), node("Conv", "x_d w_d b_d", "m")]
    feeds = {"x": rng.normal(0, 2, (1, 4, 9, 9)).astype(np.float32)}
    (fused,), (plain,), groups = run(middle, feeds, constants, np.int8)
    assert "QLinearConv" not in groups.values()
    np.testing.assert_array_equal(fused, plain)


def residual_network(rng: np.random.Generator) -> onnx.ModelProto:
    """The operators of a ResNet: two residual blocks, of which one has a convolution beside it."""

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.normal(0, 0.2, shape).astype(np.float32)
        return onnx.numpy_helper.from_array(values, name)

    def conv(x: str, y: str, i: int, side: int, **attributes) -> onnx.NodeProto:
        pads = [side // 2] * 4
        return make_node("Conv", [x, f"w{i}", f"b{i}"], [y], f"conv{i}", pads=pads, **attributes)

    nodes = [
        conv("x", "c0", 0, 7, strides=[2, 2]),
        make_node("Relu", ["c0"], ["r0"]),
        make_node("MaxPool", ["r0"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
        conv("p", "c1", 1, 3),
        make_node("Relu", ["c1"], ["r1"]),
        conv("r1", "c2", 2, 1),
        conv("p", "c3", 3, 1),
        make_node("Add", ["c2", "c3"], ["s1"]),
        make_node("Relu", ["s1"], ["r2"]),
        conv("r2", "c4", 4, 3),
        make_node("Add", ["c4", "r2"], ["s2"]),
        make_node("Relu", ["s2"], ["r3"]),
        make_node("GlobalAveragePool", ["r3"], ["mean"]),
        make_node("Flatten", ["mean"], ["flat"]),
        make_node("Gemm", ["flat", "w5", "b5"], ["y"], transB=1),
    ]
    shapes = [(8, 3, 7, 7), (8, 8, 3, 3), (16, 8, 1, 1), (16, 8, 1, 1), (16, 16, 3, 3), (10, 16)]
    constants = [constant(f"w{i}", *s) for i, s in enumerate(shapes)]
    constants += [constant(f"b{i}", s[0]) for i, s in enumerate(shapes)]
    float32 = onnx.TensorProto.FLOAT
    graph = make_graph(
        nodes, "g", [make_tensor_value_info("x", float32, ["n", 3, 16, 16])],
        [make_tensor_value_info("y", float32, ["n", 10])], constants,
    )  # fmt: skip
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("activations", [QuantType.QInt8, QuantType.QUInt8], ids=["int8", "uint8"])
def test_file_of_onnxruntimes_quantizer_runs_on_integers(tmp_path: Path, rng, activations):
    onnx.save(residual_network(rng), tmp_path / "floats.onnx")
    path = tmp_path / "quantised.onnx"
    quantize_static(
        tmp_path / "floats.onnx", path, Images(rng, 16), quant_format=QuantFormat.QDQ,
        per_channel=True, activation_type=activations, weight_type=QuantType.QInt8,
    )  # fmt: skip
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    npu = ort.InferenceSession(path, options, providers=[NPU])
    rows = onnxruntime_npu.assignment(npu)
    left = {row["op_type"] for row in rows if not row["fused_into"]}
    assert left <= {"QuantizeLinear", "DequantizeLinear"}
    kinds = Counter(fused_nodes(npu)[f"conv{i}"] for i in range(5))
    assert kinds == {"QLinearConv": 5}
    assert {f"{MICROSOFT}QLinearAdd", f"{MICROSOFT}QGemm"} <= set(fused_nodes(npu).values())
    cpu = ort.InferenceSession(path, providers=[CPU])
    feeds = {"x": rng.normal(size=(5, 3, 16, 16)).astype(np.float32)}
    got, expected = (session.run(None, feeds)[0] for session in (npu, cpu))
    # A value halfway between two integers may become either, in each of seven layers.
    np.testing.assert_allclose(got, expected, rtol=0, atol=0.03 * np.ptp(expected))

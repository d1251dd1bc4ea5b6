"""A file that onnxruntime.quantization wrote in QOperator form, on the NPU alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_npu
from calibration_images import Images
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnxruntime.quantization import QuantFormat, quantize_static
from provider_models import CPU, NPU


def network(rng: np.random.Generator) -> onnx.ModelProto:
    """A small network of the operators that have a QLinear form."""

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = rng.normal(0, 0.2, shape).astype(np.float32)
        return onnx.numpy_helper.from_array(values, name)

    nodes = [
        make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        make_node("Relu", ["c1"], ["r1"]),
        make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]),
        make_node("Add", ["c2", "r1"], ["sum"]),
        make_node("Sigmoid", ["sum"], ["gate"]),
        make_node("Mul", ["sum", "gate"], ["gated"]),
        make_node("LeakyRelu", ["gated"], ["leaky"], alpha=0.1),
        make_node("AveragePool", ["leaky"], ["pool"], kernel_shape=[2, 2], strides=[2, 2]),
        make_node("Concat", ["pool", "pool"], ["both"], axis=1),
        make_node("GlobalAveragePool", ["both"], ["mean"]),
        make_node("Flatten", ["mean"], ["flat"]),
        make_node("Gemm", ["flat", "w3", "b3"], ["z"], transB=1),
        make_node("Softmax", ["z"], ["y"], axis=-1),
    ]
    float32 = onnx.TensorProto.FLOAT
    graph = make_graph(
        nodes, "g", [make_tensor_value_info("x", float32, ["n", 3, 8, 8])],
        [make_tensor_value_info("y", float32, ["n", 10])],
        [weight("w1", 6, 3, 3, 3), weight("b1", 6), weight("w2", 6, 6, 3, 3), weight("b2", 6),
         weight("w3", 10, 12), weight("b3", 10)],
    )  # fmt: skip
    return make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=9)


def test_every_operator_runs_on_the_npu(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    onnx.save(network(rng), tmp_path / "floats.onnx")
    path = tmp_path / "quantised.onnx"
    quantize_static(
        tmp_path / "floats.onnx", path, Images(rng, 8), quant_format=QuantFormat.QOperator
    )
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    npu = ort.InferenceSession(path, options, providers=[NPU])
    rows = onnxruntime_npu.assignment(npu)
    assert {row["provider"] for row in rows} == {NPU}
    elementwise = ["Add", "Sigmoid", "Mul", "LeakyRelu", "Concat", "Softmax"]
    forms = [*elementwise, "Conv", "AveragePool", "GlobalAveragePool"]
    assert {f"QLinear{form}" for form in forms} | {"QGemm"} <= {row["op_type"] for row in rows}
    cpu = ort.InferenceSession(path, providers=[CPU])
    feeds = {"x": rng.normal(size=(5, 3, 8, 8)).astype(np.float32)}
    got, expected = (session.run(None, feeds)[0] for session in (npu, cpu))
    # Probabilities in steps of 1 / 256; a value halfway between two integers may become either.
    np.testing.assert_allclose(got, expected, rtol=0, atol=1.01 / 256)

"""FusedGemm, FusedConv, BiasSplitGelu and BiasDropout of com.microsoft."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx_nodes import (
    Node,
    make_session,
    npu_nodes,
    random,
    run_cpu,
    run_npu,
    run_session,
)

MICROSOFT = "com.microsoft"
# Sums of up to 60 terms of up to 16, and then a function.
NEAR = {"float32": 2e-5, "float16": 3e-2}


def close(got, expected, dtype="float32") -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=NEAR[dtype], atol=NEAR[dtype])


GEMM_ACTIVATIONS = [
    ("Relu", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("LeakyRelu", {"activation_alpha": 0.2}),
    ("Elu", {"activation_alpha": 0.7}),
    ("ThresholdedRelu", {"activation_alpha": 0.5}),
    ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
    ("Selu", {"activation_alpha": 1.5, "activation_gamma": 1.1}),
]


@pytest.mark.parametrize("constant", [(), (1, 2)])
@pytest.mark.parametrize("activation, numbers", GEMM_ACTIVATIONS)
def test_gemm(activation, numbers, constant) -> None:
    rng = np.random.default_rng(1)
    options = {"domain": MICROSOFT, "activation": activation} | numbers
    for a, b, c, turns in [
        ((3, 20), (20, 5), (5,), {}),
        ((20, 33), (40, 20), (33, 1), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
        ((0, 4), (4, 5), (5,), {}),
    ]:
        given = [random(rng, "float32", *shape, low=-1, high=1) for shape in (a, b, c)]
        got = run_npu("FusedGemm", given, constant=constant, **options, **turns)[0]
        close(got, run_cpu("FusedGemm", given, **options, **turns)[0])


CONV_ACTIVATIONS = [
    ("Relu", []),
    ("Sigmoid", []),
    ("Tanh", []),
    ("LeakyRelu", [0.2]),
    ("Clip", [-1.0, 2.0]),
    ("HardSigmoid", [0.3, 0.4]),
]


@pytest.mark.parametrize("addend", [False, True])
@pytest.mark.parametrize("constant", [(), (1, 2)])
@pytest.mark.parametrize("activation, numbers", CONV_ACTIVATIONS)
def test_conv(activation, numbers, constant, addend) -> None:
    rng = np.random.default_rng(2)
    options = {"domain": MICROSOFT, "activation": activation}
    if numbers:
        options["activation_params"] = numbers
    for x, w, y, more in [
        ((2, 4, 9, 8), (6, 4, 3, 3), (2, 6, 9, 8), {"pads": [1, 1, 1, 1]}),
        ((1, 4, 9, 8), (8, 1, 3, 3), (1, 8, 4, 3), {"group": 4, "strides": [2, 2]}),
        ((1, 16, 5, 5), (7, 16, 1, 1), (1, 7, 5, 5), {}),
    ]:
        given = [random(rng, "float32", *shape, low=-1, high=1) for shape in (x, w, w[:1])]
        if addend:
            given.append(random(rng, "float32", *y))
        got = run_npu("FusedConv", given, constant=constant, **options, **more)[0]
        close(got, run_cpu("FusedConv", given, **options, **more)[0])


def test_other_types() -> None:
    rng = np.random.default_rng(3)
    for op, shapes in [
        ("FusedGemm", [(3, 20), (20, 5)]),
        ("FusedConv", [(1, 3, 6, 6), (4, 3, 3, 3)]),
    ]:
        wide = [random(rng, "float32", *shape, low=-1, high=1) for shape in shapes]
        expected = run_cpu(op, wide, domain=MICROSOFT, activation="Relu")[0]
        half = [a.astype(np.float16) for a in wide]
        got = run_npu(op, half, domain=MICROSOFT, activation="Relu")[0]
        assert got.dtype == np.float16
        close(got, expected, "float16")


def test_a_file_that_onnxruntime_optimised(tmp_path) -> None:
    """Its extended level writes both operators."""
    rng = np.random.default_rng(4)

    def weight(name, *shape):
        return onnx.numpy_helper.from_array(
            random(rng, "float32", *shape, low=-0.3, high=0.3), name
        )

    make = onnx.helper.make_node
    nodes = [
        make("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        make("LeakyRelu", ["c"], ["r"], alpha=0.1),
        make("Conv", ["r", "v"], ["d"], pads=[1, 1, 1, 1]),
        make("Relu", ["d"], ["s"]),
        make("Flatten", ["s"], ["f"]),
        make("Gemm", ["f", "g", "h"], ["i"], transB=1),
        make("Tanh", ["i"], ["y"]),
    ]
    of = onnx.helper.make_tensor_value_info
    float32 = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes, "g", [of("x", float32, ["n", 3, 6, 6])], [of("y", float32, ["n", 10])],
        [weight("w", 4, 3, 3, 3), weight("v", 4, 4, 3, 3), weight("g", 10, 144), weight("h", 10)],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    cpu = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    npu = make_session((tmp_path / "fused.onnx").read_bytes())
    assert sorted(npu_nodes(npu)) == ["Flatten", "FusedConv", "FusedConv", "FusedGemm"]
    feeds = {"x": random(rng, "float32", 2, 3, 6, 6)}
    close(run_session(npu, feeds)[0], cpu.run(None, feeds)[0])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_bias_split_gelu(dtype) -> None:
    rng = np.random.default_rng(5)
    for shape in [(2, 3, 8), (1, 5, 1400), (0, 3, 4), (1, 1, 2)]:
        x, bias = random(rng, dtype, *shape), random(rng, dtype, shape[-1])
        got = run_npu("BiasSplitGelu", [x, bias], domain=MICROSOFT)[0]
        left, right = np.split(x.astype(np.float64) + bias.astype(np.float64), 2, -1)
        erf = np.vectorize(math.erf, otypes=[np.float64])
        assert got.dtype == x.dtype
        close(got, left * 0.5 * right * (1 + erf(right / math.sqrt(2))), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_bias_dropout_drops_nothing(dtype) -> None:
    rng = np.random.default_rng(6)
    x, row, whole = (random(rng, dtype, *shape) for shape in [(3, 4, 10), (10,), (3, 4, 10)])
    ratio = np.array(0.7, x.dtype)
    for bias in (row, whole):
        for residual in (None, whole):
            for training in (None, np.array(False)):
                given = [x, bias, residual, ratio, training]
                y, mask = run_npu("BiasDropout", given, 2, domain=MICROSOFT)
                wide = [0 if a is None else a.astype(np.float64) for a in given[:3]]
                # One rounding of a sum of up to 12.
                near = {"float32": 1e-6, "float16": 8e-3, "bfloat16": 6e-2, "float64": 1e-14}
                np.testing.assert_allclose(
                    y.astype(np.float64), sum(wide), rtol=0, atol=near[dtype]
                )
                assert mask.dtype == np.bool_ and mask.all()


ONES = np.ones((2, 4), np.float32)
IMAGE, KERNEL = np.ones((1, 2, 4, 4), np.float32), np.ones((3, 2, 3, 3), np.float32)
WRONG = [
    ("FusedGemm", [ONES, ONES], {"activation": "Relu"}, "as many columns of A"),
    ("FusedConv", [IMAGE, KERNEL, None, IMAGE], {"activation": "Relu"}, "expected a residual"),
    ("BiasSplitGelu", [np.ones((1, 2, 3), np.float32), np.ones(3, np.float32)], {}, "even last"),
    (
        "BiasSplitGelu",
        [np.ones((1, 2, 4), np.float32), np.ones(2, np.float32)],
        {},
        "expected a bias",
    ),
    ("BiasDropout", [ONES, np.ones(3, np.float32)], {}, "expected a bias"),
    ("BiasDropout", [ONES, ONES, ONES[:1]], {}, "expected a residual"),
    ("BiasDropout", [ONES, ONES, None, None, np.array(True)], {}, "only inference"),
]


@pytest.mark.parametrize("op, inputs, options, message", WRONG, ids=lambda v: str(v)[:20])
def test_wrong_operands(op, inputs, options, message) -> None:
    with pytest.raises(Exception, match=message):
        Node(op, inputs, domain=MICROSOFT, **options)(*inputs)

"""A convolution whose result is normalised by constants, then a residual and an activation."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import fused_nodes, model_of, node, run_both, without_optimizations
from provider_models import npu_session

FOLDED = "npu.fused:ConvBatchNormalization"
IN_CHAIN = "npu.channels_last:ConvBatchNormalization"
# The weight is rounded once more, after its multiplication: sums of up to 54 products of values
# around 1, each off by 2^-24 of itself.
CLOSE = {"rtol": 1e-5, "atol": 2e-5}
# Kernels with a packed weight, without one, and of one dimension.
SHAPES = {
    "dense": ((2, 6, 20, 21), (9, 6, 3, 3), 1),
    "depthwise": ((2, 6, 20, 21), (12, 1, 3, 3), 6),
    "pointwise": ((1, 6, 40, 41), (40, 6, 1, 1), 1),
    "few positions": ((2, 6, 5, 5), (64, 6, 3, 3), 1),
    "one dimension": ((2, 6, 33), (5, 6, 3), 1),
}


def operands(rng, kind: str = "dense"):
    """Input, constants and the attributes of the convolution."""
    x, weight, group = SHAPES[kind]
    out = weight[0]
    constants = {
        "w": rng.standard_normal(weight) / np.sqrt(np.prod(weight[1:])),
        "b": rng.standard_normal(out),
        "scale": rng.uniform(0.5, 2, out) * rng.choice([-1, 1], out),
        "shift": rng.standard_normal(out),
        "mean": rng.standard_normal(out),
        "variance": rng.uniform(0.1, 2, out),
    }
    pads = [weight[-1] // 2] * (2 * (len(weight) - 2))
    feeds = {"x": rng.standard_normal(x).astype(np.float32)}
    constants = {name: value.astype(np.float32) for name, value in constants.items()}
    return feeds, constants, {"group": group, "pads": pads}


def normalised(conv_inputs: str, result: str, attributes: dict, **more) -> list[onnx.NodeProto]:
    """Conv and BatchNormalization."""
    return [
        node("Conv", conv_inputs, "c", **attributes),
        node("BatchNormalization", "c scale shift mean variance", result, epsilon=0.01, **more),
    ]


def run(nodes, feeds, constants, **options):
    read = {name for n in nodes for name in n.input}
    used = {name: value for name, value in constants.items() if name in read and name not in feeds}
    return run_both(model_of(nodes, feeds, used, opset=options.pop("opset", 15), **options), feeds)


@pytest.mark.parametrize("bias", ["b", ""])
@pytest.mark.parametrize("kind", SHAPES)
def test_normalization_is_folded(rng, kind, bias):
    feeds, constants, attributes = operands(rng, kind)
    nodes = normalised(f"x w {bias}", "y", attributes)
    (fused,), (plain,), groups = run(nodes, feeds, constants)
    assert groups == {"c": FOLDED, "y": FOLDED}
    np.testing.assert_allclose(fused, plain, **CLOSE)
    assert np.ptp(plain) > 1


@pytest.mark.parametrize("opset", [7, 9, 14, 22])
def test_activation_and_residual(rng, opset):
    feeds, constants, attributes = operands(rng)
    feeds["r"] = rng.standard_normal((2, 9, 20, 21)).astype(np.float32)
    for operands_of_sum in ("n r", "r n"):
        nodes = normalised("x w b", "n", attributes)
        nodes += [node("Add", operands_of_sum, "s"), node("Relu", "s", "y")]
        (fused,), (plain,), groups = run(nodes, feeds, constants, opset=opset)
        assert groups == dict.fromkeys("cnsy", FOLDED)
        np.testing.assert_allclose(fused, plain, **CLOSE)
        assert (plain == 0).any() and (plain > 1).any()
    nodes = [*normalised("x w b", "n", attributes), node("HardSwish", "n", "y")]
    if opset >= 14:
        (fused,), (plain,), groups = run(nodes, feeds, constants, opset=opset)
        assert groups == dict.fromkeys("cny", FOLDED)
        np.testing.assert_allclose(fused, plain, **CLOSE)


def chain(rng):
    """Two normalised convolutions with ReLU, the second depthwise: a chain of channels last."""
    feeds, constants, attributes = operands(rng)
    depthwise = {"w2": rng.standard_normal((9, 1, 3, 3)).astype(np.float32) / 3}
    nodes = [
        *normalised("x w", "n", attributes),
        node("Relu", "n", "m"),
        node("Conv", "m w2", "d", group=9, pads=[1, 1, 1, 1]),
        node("BatchNormalization", "d scale shift mean variance", "dn"),
        node("Relu", "dn", "y"),
    ]
    return nodes, feeds, {**{k: v for k, v in constants.items() if k != "b"}, **depthwise}


def test_chains_of_normalised_convolutions_are_channels_last(rng):
    nodes, feeds, constants = chain(rng)
    (fused,), (plain,), groups = run(nodes, feeds, constants)
    assert groups == {n.name: IN_CHAIN for n in nodes}
    np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-4)  # two layers, values of up to 20


def test_a_compiled_model_keeps_the_folded_weight(rng, tmp_path, capfd):
    nodes, feeds, constants = chain(rng)
    model = model_of(nodes, feeds, constants, opset=15)
    expected = npu_session(model, without_optimizations()).run(None, feeds)
    options = without_optimizations()
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "m.onnx"))
    npu_session(model, options)
    kinds = {n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node}
    assert kinds == {"EPContext"}
    compiled = npu_session(str(tmp_path / "m.onnx"), without_optimizations())
    np.testing.assert_array_equal(compiled.run(None, feeds), expected)
    assert "packed again" not in capfd.readouterr().err


def test_onnxruntime_folds_first_when_it_optimizes(rng):
    """With its optimizations of the first level the convolution and ReLU are what is left."""
    feeds, constants, attributes = operands(rng)
    nodes = [*normalised("x w b", "n", attributes), node("Relu", "n", "y")]
    session = npu_session(model_of(nodes, feeds, constants, opset=15))
    assert set(fused_nodes(session).values()) == {"npu.fused:FusedConv"}


NEAR_MISSES = {
    "a result that is read elsewhere, too": lambda: [
        node("Conv", "x w b", "c", pads=[1] * 4),
        node("BatchNormalization", "c scale shift mean variance", "n"),
        node("Add", "n c", "y"),
    ],
    "statistics that are computed": lambda: [
        node("Add", "mean shift", "moved"),
        node("Conv", "x w b", "c", pads=[1] * 4),
        node("BatchNormalization", "c scale shift moved variance", "y"),
    ],
    "training": lambda: [
        node("Conv", "x w b", "c", pads=[1] * 4),
        node("BatchNormalization", "c scale shift mean variance", "y m v", training_mode=1),
    ],
    "a weight that is an input": lambda: normalised("x weight b", "y", {"pads": [1] * 4}),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_miss_is_not_folded(rng, case):
    feeds, constants, _ = operands(rng)
    nodes = NEAR_MISSES[case]()
    if "weight" in nodes[0].input:
        feeds["weight"] = constants["w"]
    (fused,), (plain,), groups = run(nodes, feeds, constants)
    assert FOLDED not in groups.values()
    np.testing.assert_array_equal(fused, plain)

"""A convolution with the addition of a residual and an activation behind it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import BFLOAT16, ONNX_TYPES, model_of, node, run_both

CONV = "npu.fused:FusedConv"
IN_CHAIN = "npu.channels_last:FusedConv"
CONSTANTS = {
    "zero": np.array(0, np.float32),
    "six": np.array(6, np.float32),
    "many": np.zeros(4, np.float32),
}
ACTIVATIONS = {
    "Relu": [node("Relu", "c", "y")],
    "LeakyRelu": [node("LeakyRelu", "c", "y", alpha=0.3)],
    "Clip": [node("Clip", "c zero six", "y")],
    "Clip from below": [node("Clip", "c zero", "y")],
    "Sigmoid": [node("Sigmoid", "c", "y")],
    "Tanh": [node("Tanh", "c", "y")],
    "HardSigmoid": [node("HardSigmoid", "c", "y", alpha=0.3)],
    "HardSwish": [node("HardSwish", "c", "y")],
    "HardSwish spelled out": [
        node("HardSigmoid", "c", "gate", alpha=1 / 6, beta=0.5),
        node("Mul", "c gate", "y"),
    ],
    "Silu": [node("Sigmoid", "c", "gate"), node("Mul", "gate c", "y")],
    "Gelu": [node("Gelu", "c", "y")],
    "Gelu by tanh": [node("Gelu", "c", "y", approximate="tanh")],
}
# Kernels that write their results in different ways: through padded planes, as a plain product, by
# sums of rows, in panels of few positions.
SHAPES = {
    "taps": ((2, 6, 20, 21), (9, 6, 3, 3), 1),
    "strided": ((2, 6, 20, 21), (9, 6, 3, 3), 1),
    "grouped": ((1, 6, 20, 21), (9, 2, 3, 3), 3),
    "pointwise": ((2, 6, 40, 41), (40, 6, 1, 1), 1),
    "pointwise in pieces": ((1, 4, 60, 61), (150, 4, 1, 1), 1),
    "depthwise": ((2, 6, 20, 21), (12, 1, 3, 3), 6),
    "few positions": ((2, 6, 5, 5), (64, 6, 3, 3), 1),
    "one dimension": ((2, 6, 33), (5, 6, 3), 1),
}


def operands(rng, kind: str, dtype=np.float32) -> tuple[dict, dict, dict]:
    x, weight, group = SHAPES[kind]
    feeds = {"x": rng.standard_normal(x).astype(dtype)}
    constants = {
        "w": (3 * rng.standard_normal(weight) / np.sqrt(np.prod(weight[1:]))).astype(dtype),
        "b": rng.standard_normal(weight[0]).astype(dtype),
        **{name: value.astype(dtype) for name, value in CONSTANTS.items()},
    }
    pads = [weight[-1] // 2] * (2 * (len(weight) - 2))
    attributes = {"group": group, "pads": pads}
    if kind == "strided":
        attributes["strides"] = [2] * (len(weight) - 2)
    return feeds, constants, attributes


def used(constants: dict, nodes: list[onnx.NodeProto]) -> dict:
    names = {name for n in nodes for name in n.input}
    return {name: value for name, value in constants.items() if name in names}


def run(nodes, feeds, constants, **options):
    return run_both(model_of(nodes, feeds, used(constants, nodes), opset=22, **options), feeds)


@pytest.mark.parametrize("form", ACTIVATIONS)
def test_activation_is_fused(rng, form):
    """The fused kernel applies the activation's own formula to the same sums, so that nothing
    but the compiler's choice of fused multiply-adds can differ: 1e-6 is 8 units of float32.
    """
    feeds, constants, attributes = operands(rng, "taps")
    nodes = [node("Conv", "x w b", "c", **attributes), *ACTIVATIONS[form]]
    (fused,), (plain,), groups = run(nodes, feeds, constants)
    assert groups == {n.name: CONV for n in nodes}
    np.testing.assert_allclose(fused, plain, rtol=1e-6, atol=1e-6)
    assert np.ptp(plain) > 0.5


@pytest.mark.parametrize("kind", SHAPES)
def test_every_kernel_finishes_its_results(rng, kind):
    feeds, constants, attributes = operands(rng, kind)
    conv = node("Conv", "x w b", "c", **attributes)
    (plain,), _, _ = run([conv, node("Identity", "c", "y")], feeds, constants)
    residual = rng.standard_normal(plain.shape).astype(np.float32)
    for operands_of_sum, outer in (("c r", "Relu"), ("r c", "Relu"), ("c r", "")):
        nodes = [conv, node("Add", operands_of_sum, "s"), node(outer, "s", "y")]
        if not outer:
            nodes = [conv, node("Add", operands_of_sum, "y")]
        (fused,), _, groups = run(nodes, {**feeds, "r": residual}, constants)
        assert groups == {n.name: CONV for n in nodes}
        expected = plain + residual
        np.testing.assert_array_equal(fused, np.maximum(expected, 0) if outer else expected)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float64], ids=str)
def test_types(rng, dtype):
    """The fused kernel rounds the sum to 16 bits once, the operators after each step: the results
    differ by two roundings of values of up to 8.
    """
    bits = {np.dtype(np.float64): 50, np.dtype(np.float16): 10}.get(np.dtype(dtype), 7)
    feeds, constants, attributes = operands(rng, "taps", dtype)
    residual = rng.standard_normal((2, 9, 20, 21))
    group = [
        node("Conv", "x w b", "c", **attributes),
        node("Add", "c r", "s"),
        node("HardSwish" if dtype != BFLOAT16 else "Relu", "s", "h"),
    ]
    # NumPy and onnxruntime exchange no bfloat16.
    kind = ONNX_TYPES[np.dtype(dtype)]
    nodes = [
        *(node("Cast", f"{name}64", name, to=kind) for name in "xr"),
        *group,
        node("Cast", "h", "y", to=onnx.TensorProto.DOUBLE),
    ]
    feeds = {"x64": feeds["x"].astype(np.float64), "r64": residual}
    (fused,), (plain,), groups = run(nodes, feeds, constants)
    assert groups == {n.name: CONV for n in group}
    error = np.abs(fused - plain)
    assert error.max() <= 8 * 2.0**-bits


def test_not_a_number_stays_one(rng):
    feeds, constants, attributes = operands(rng, "taps")
    feeds["x"][0, 0, 5, 5], feeds["x"][1, 0, 5, 5] = np.nan, np.inf
    for form in ("Relu", "Clip", "HardSwish", "Silu"):
        nodes = [node("Conv", "x w b", "c", **attributes), *ACTIVATIONS[form]]
        (fused,), (plain,), groups = run(nodes, feeds, constants)
        assert set(groups.values()) == {CONV}
        np.testing.assert_array_equal(np.isnan(fused), np.isnan(plain))
        assert np.isnan(plain).any()


NEAR_MISSES = {
    "a bound that is an input": ([node("Clip", "c bound six", "y")], {"bound": CONSTANTS["zero"]}),
    "an activation that is none of them": ([node("Softplus", "c", "y")], {}),
    "a gate of another value": (
        [node("Sigmoid", "other", "gate"), node("Mul", "c gate", "y")],
        {"other": np.ones((2, 9, 20, 21), np.float32)},
    ),
    "a gate of another slope": (
        [node("HardSigmoid", "c", "gate", alpha=0.2), node("Mul", "c gate", "y")],
        {},
    ),
    "a bias that is added to every row": (
        [node("Add", "c row", "s"), node("Softplus", "s", "y")],
        {"row": np.ones((1, 1, 20, 21), np.float32)},
    ),
    "a residual that broadcasts the result": (
        [node("Add", "c wide", "s"), node("Softplus", "s", "y")],
        {"wide": np.ones((3, 2, 9, 20, 21), np.float32)},
    ),
    "a product instead of a sum": (
        [node("Mul", "c r", "y")],
        {"r": np.ones((2, 9, 20, 21), np.float32)},
    ),
    "a sum with itself": ([node("Add", "c c", "s"), node("Softplus", "s", "y")], {}),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_miss_is_not_fused(rng, case):
    feeds, constants, attributes = operands(rng, "taps")
    tail, more = NEAR_MISSES[case]
    nodes = [node("Conv", "x w b", "c", **attributes), *tail]
    (fused,), (plain,), groups = run(nodes, {**feeds, **more}, constants)
    assert CONV not in groups.values()
    np.testing.assert_array_equal(fused, plain)


def test_a_residual_of_unknown_shape_is_not_fused(rng):
    """It might broadcast; the activation alone does not depend on shapes."""
    feeds, constants, attributes = operands(rng, "taps")
    feeds["r"] = rng.standard_normal((1, 9, 20, 21)).astype(np.float32)
    conv = node("Conv", "x w b", "c", **attributes)
    nodes = [conv, node("Add", "c r", "s"), node("Relu", "s", "y")]
    (fused,), (plain,), groups = run(nodes, feeds, constants, dynamic=True)
    assert groups == {}
    np.testing.assert_array_equal(fused, plain)
    del feeds["r"]
    nodes = [conv, node("Relu", "c", "y")]
    (fused,), (plain,), groups = run(nodes, feeds, constants, dynamic=True)
    assert groups == {"c": CONV, "y": CONV}
    np.testing.assert_array_equal(fused, plain)


def test_the_sum_of_two_convolutions_is_fused_with_one(rng):
    """As in the first block of each stage of a ResNet."""
    feeds, constants, attributes = operands(rng, "taps")
    nodes = [
        node("Conv", "x w b", "c", **attributes),
        node("Conv", "x w", "d", **attributes),
        node("Add", "c d", "s"),
        node("Relu", "s", "y"),
    ]
    (fused,), (plain,), groups = run(nodes, feeds, constants)
    assert groups == {"d": "npu.channels_last:Conv", **dict.fromkeys("csy", IN_CHAIN)}
    # Values of up to 30 that are sums of 54 products in another order.
    np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=3e-5)

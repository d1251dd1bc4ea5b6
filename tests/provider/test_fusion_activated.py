"""MatMul, a bias and an activation as one operator."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fusion_models import model_of, node, run_both

ACTIVATED = "npu.fused:ActivatedMatMul"


def linear(*activation: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [node("MatMul", "x w", "h"), node("Add", "h b", "s"), *activation]


def run(rng, nodes, dtype=np.float32, shape=(2, 3, 48), bias=(40,), **settings):
    feeds = {"x": rng.standard_normal(shape).astype(dtype)}
    constants = {
        "w": (rng.standard_normal((shape[-1], 40)) / shape[-1] ** 0.5).astype(dtype),
        "b": rng.standard_normal(bias).astype(dtype),
        "half": np.array(0.5, dtype),
        "one": np.array(1, dtype),
        "root": np.array(2**0.5, dtype),
    }
    return run_both(model_of(nodes, feeds, constants, **settings), feeds)


SPELLED_GELU = [
    node("Div", "s root", "d"),
    node("Erf", "d", "e"),
    node("Add", "e one", "p"),
    node("Mul", "s p", "m"),
    node("Mul", "m half", "y"),
]
ACTIVATIONS = {
    "Relu": [node("Relu", "s", "y")],
    "Sigmoid": [node("Sigmoid", "s", "y")],
    "Tanh": [node("Tanh", "s", "y")],
    "HardSwish": [node("HardSwish", "s", "y")],
    "Gelu": [node("Gelu", "s", "y")],
    "Gelu of tanh": [node("Gelu", "s", "y", approximate="tanh")],
    "SiLU spelled out": [node("Sigmoid", "s", "g"), node("Mul", "s g", "y")],
    "Gelu spelled out": SPELLED_GELU,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_sums_are_activated_before_they_are_stored(rng, name, dtype):
    """Without the fusion a product of about 1, its sum and each step are rounded."""
    fused, plain, groups = run(rng, linear(*ACTIVATIONS[name]), dtype)
    assert set(groups.values()) == {ACTIVATED} and {"h", "s", "y"} <= set(groups)
    bits = 21 if dtype == np.float32 else 10
    for a, b in zip(fused, plain, strict=True):
        assert a.shape == (2, 3, 40) and a.dtype == dtype
        np.testing.assert_allclose(
            a.astype(np.float32), b.astype(np.float32), rtol=0, atol=16 * 2.0**-bits
        )


def test_unknown_numbers_of_rows(rng):
    groups = run(rng, linear(*ACTIVATIONS["Gelu"]), dynamic=True)[2]
    assert groups == {"h": ACTIVATED, "s": ACTIVATED, "y": ACTIVATED}


@pytest.mark.parametrize(
    ("nodes", "bias"),
    [
        (linear(node("Relu", "s", "y")), (3, 40)),
        (linear(node("Relu", "s", "y")), (1,)),
        (linear(node("LeakyRelu", "s", "y")), (40,)),
        ([*linear(node("Relu", "s", "r")), node("Mul", "r s", "y")], (40,)),
    ],
    ids=["a bias of each row", "one for all", "an activation with numbers", "the sum is read"],
)
def test_what_stays_apart(rng, nodes, bias):
    fused, plain, groups = run(rng, nodes, bias=bias)
    assert groups == {}
    for a, b in zip(fused, plain, strict=True):
        np.testing.assert_array_equal(a, b)

"""Elementwise functions against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import FLOATS, Node, assert_close, random

# For every operator: the reference, the range of x, the opset of all types, and attributes.
TRIGONOMETRY = {
    "Acos": (np.arccos, -1, 1),
    "Asin": (np.arcsin, -1, 1),
    "Atan": (np.arctan, -20, 20),
    "Tan": (np.tan, -1.5, 1.5),
    "Acosh": (np.arccosh, 1, 20),
    "Asinh": (np.arcsinh, -20, 20),
    "Atanh": (np.arctanh, -0.99, 0.99),
    "Cosh": (np.cosh, -5, 5),
    "Sinh": (np.sinh, -5, 5),
}
ACTIVATIONS = {
    "Elu": (lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x), {"alpha": 1.5}),
    "Selu": (
        lambda x, alpha, gamma: gamma * np.where(x <= 0, alpha * np.expm1(x), x),
        {"alpha": 1.25, "gamma": 2.0},
    ),
    "HardSigmoid": (
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        {"alpha": 0.25, "beta": 0.625},
    ),
    "HardSwish": (lambda x: x * np.clip(x + 3, 0, 6) / 6, {}),
    "Mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), {}),
    "Softsign": (lambda x: x / (1 + np.abs(x)), {}),
    "ThresholdedRelu": (lambda x, alpha: np.where(x > alpha, x, 0), {"alpha": 0.5}),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", TRIGONOMETRY)
def test_trigonometry(op: str, dtype: str) -> None:
    reference, low, high = TRIGONOMETRY[op]
    rng = np.random.default_rng(1)
    node = Node(op, [random(rng, dtype, 1)], opset=22)
    for shape in [(), (0, 3), (7,), (5, 1031)]:
        x = random(rng, dtype, *shape, low=low, high=high)
        x = np.clip(x, low, high).astype(x.dtype)  # 16-bit rounding may leave the domain
        assert_close(node(x)[0], reference(x.astype(np.float64)), dtype, factor=4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_activation(op: str, dtype: str) -> None:
    reference, attributes = ACTIVATIONS[op]
    rng = np.random.default_rng(2)
    node = Node(op, [random(rng, dtype, 1)], opset=22, **attributes)
    # Values that vanish in a sum, ends of ranges, NaN.
    special = [0.0, 1e-6, -1e-6, -1e-3, 3, -3, 6, -6, 60, -60, np.inf, np.nan]
    tiny = np.array(special, np.float64).astype(random(rng, dtype, 1).dtype)
    for x in [random(rng, dtype, 0, 3), random(rng, dtype, 5, 1031, low=-9, high=9), tiny]:
        with np.errstate(all="ignore"):
            expected = reference(x.astype(np.float64), **attributes)
        if op == "ThresholdedRelu":
            expected = np.where(np.isnan(x.astype(np.float64)), np.nan, expected)
        assert_close(node(x)[0], expected, dtype, factor=4)


def test_celu_of_small_and_large_arguments() -> None:
    x = np.array([-50, -1, -1e-6, -0.0, 1e-6, 3, np.inf, np.nan], np.float32)
    got = Node("Celu", [x], opset=12, alpha=2.0)(x)[0]
    wide = x.astype(np.float64)
    expected = np.maximum(0, wide) + np.minimum(0, 2 * np.expm1(wide / 2))
    assert_close(got, expected, "float32")


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "int64", "uint32", "uint64"])
def test_prelu_broadcasts_slope(dtype: str) -> None:
    rng = np.random.default_rng(3)
    node = Node("PRelu", [random(rng, dtype, 1), random(rng, dtype, 1)], opset=16)
    for x_shape, slope_shape in [((2, 3, 4), (3, 1)), ((4, 700), ()), ((5,), (5,)), ((0, 3), (3,))]:
        x, slope = random(rng, dtype, *x_shape), random(rng, dtype, *slope_shape)
        wide = [a if dtype not in FLOATS else a.astype(np.float64) for a in (x, slope)]
        assert_close(node(x, slope)[0], np.where(wide[0] < 0, wide[0] * wide[1], wide[0]), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64", "uint8"])
def test_shrink(dtype: str) -> None:
    rng = np.random.default_rng(4)
    x = random(rng, dtype, 3, 333, low=-9, high=9)
    wide = x.astype(np.float64)
    expected = np.where(wide < -2.5, wide + 1, np.where(wide > 2.5, wide - 1, 0))
    assert_close(Node("Shrink", [x], bias=1.0, lambd=2.5)(x)[0], expected.astype(x.dtype), dtype)


def test_prelu_slope_broadcasts_along_rows_and_columns() -> None:
    """A slope that is constant along rows or columns, for lengths around the block size."""
    rng = np.random.default_rng(5)
    node = Node("PRelu", [np.zeros(1, np.float32)] * 2, opset=16)
    for columns in (1, 2, 255, 256, 257, 513):
        x = random(rng, "float32", 9, columns)
        for slope_shape in [(9, 1), (1, columns), (1, 1), (9, columns)]:
            slope = random(rng, "float32", *slope_shape)
            assert_close(node(x, slope)[0], np.where(x < 0, x * slope, x), "float32")

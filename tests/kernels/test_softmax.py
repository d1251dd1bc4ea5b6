"""Softmax and LogSoftmax along every axis, before and after opset 13, in float64 by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import Node, dtype_of, random

SHAPES = [(5,), (3, 4), (2, 3, 400), (4, 7, 300), (1, 50, 2, 3)]
# Of the largest result, 1, or of the largest logarithm, which is below 64 here.
NEAR = {"float64": 2.0**-48, "float32": 2.0**-20, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def shares(x: np.ndarray, axes: tuple[int, ...], log: bool) -> np.ndarray:
    wide = x.astype(np.float64)
    below = wide - wide.max(axes, keepdims=True)
    logs = below - np.log(np.exp(below).sum(axes, keepdims=True))
    return logs if log else np.exp(logs)


@pytest.mark.parametrize(
    ("dtype", "opset"),  # bfloat16 is a type of opset 13
    [(dtype, opset) for dtype in NEAR for opset in (11, 13) if (dtype, opset) != ("bfloat16", 11)],
)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(dtype, op, opset) -> None:
    for shape in SHAPES:
        x = random(np.random.default_rng(1), dtype, *shape, low=-30, high=30)
        for axis in range(-len(shape), len(shape)):
            got = Node(op, [x], axis=axis, opset=opset)(x)[0].astype(np.float64)
            first = axis % len(shape)
            axes = (first,) if opset == 13 else tuple(range(first, len(shape)))
            expected = shares(x, axes, op == "LogSoftmax")
            scale = 64 if op == "LogSoftmax" else 1
            np.testing.assert_allclose(got, expected, rtol=0, atol=scale * NEAR[dtype])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_special_values_of_softmax(op, dtype) -> None:
    node = Node(op, [np.zeros((1, 1), dtype_of(dtype))], opset=13)
    one, none = (1, 0) if op == "Softmax" else (0, -np.inf)
    rows = [[0, -np.inf, -np.inf], [np.nan, 0, 1], [-np.inf, -np.inf, -np.inf]]
    got = node(np.array(rows, dtype_of(dtype)))[0].astype(np.float64)
    np.testing.assert_array_equal(got[0], [one, none, none])
    assert np.isnan(got[1:]).all()
    far = node(np.array([[0, -1e4]], dtype_of(dtype)))[0].astype(np.float64)
    assert far[0, 0] == one and far[0, 1] == pytest.approx(0 if one else -1e4, rel=1e-2)

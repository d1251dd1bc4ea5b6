"""QLinearMatMul, QLinearConv and ConvInteger against onnxruntime's CPU provider and NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx_nodes import Node, run_cpu, run_npu

BYTES = [np.int8, np.uint8]
# (input shape, weight shape, attributes)
CASES = [
    ((1, 3, 7, 8), (4, 3, 3, 3), {}),
    ((2, 3, 7, 8), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((1, 4, 9, 9), (6, 2, 3, 3), {"group": 2, "strides": [2, 2], "pads": [1, 0, 2, 1]}),
    ((1, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    ((2, 16, 5, 5), (8, 16, 1, 1), {}),
    ((1, 2, 12, 9), (3, 2, 3, 2), {"dilations": [2, 3]}),
    ((1, 3, 40), (7, 3, 5), {"pads": [2, 2]}),
    ((1, 64, 20, 20), (16, 64, 3, 3), {"pads": [1, 1, 1, 1]}),
    # More rows than are multiplied at a time, channels that fill panels and vectors in part.
    ((2, 70, 33, 31), (37, 70, 3, 3), {"pads": [1, 1, 1, 1], "strides": [1, 2]}),
    ((1, 130, 19, 18), (67, 130, 1, 1), {}),
    ((1, 20, 9, 9), (70, 10, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((2, 83, 13, 11), (83, 1, 3, 3), {"group": 83, "pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ((1, 5, 4, 5, 6), (6, 5, 2, 3, 3), {"pads": [1, 0, 1, 0, 1, 1]}),
    ((1, 3, 6, 6), (4, 3, 2, 2), {"dilations": [9, 8], "pads": [5, 4, 6, 7]}),
]


def integers(rng, dtype, *shape) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def integer_convolution(x, w, x_zero, w_zero, attributes) -> np.ndarray:
    """The exact sums, in float64."""
    rank = x.ndim - 2
    pads = attributes.get("pads", [0] * 2 * rank)
    wide = [a.astype(np.float64) for a in (x, w)]
    wide[0] -= x_zero
    wide[1] -= np.reshape(w_zero, (-1,) + (1,) * (rank + 1)).astype(np.float64)
    margins = [side for d in reversed(range(rank)) for side in (pads[d], pads[d + rank])]
    return torch.nn.functional.__dict__[f"conv{rank}d"](
        torch.nn.functional.pad(torch.from_numpy(wide[0]), margins),
        torch.from_numpy(wide[1]),
        None,
        attributes.get("strides", 1),
        0,
        attributes.get("dilations", 1),
        attributes.get("group", 1),
    ).numpy()


@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("w_type", BYTES)
@pytest.mark.parametrize("x_type", BYTES)
def test_conv_integer(x_type, w_type, constant) -> None:
    rng = np.random.default_rng(1)
    for shape, kernel, attributes in CASES:
        x, w = integers(rng, x_type, *shape), integers(rng, w_type, *kernel)
        x_zero, w_zero = integers(rng, x_type), integers(rng, w_type)
        operands = [x, w, x_zero, w_zero]
        got = run_npu("ConvInteger", operands, opset=10, constant=constant, **attributes)[0]
        expected = integer_convolution(x, w, x_zero, w_zero, attributes)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, expected)
        bare = run_npu("ConvInteger", [x, w], opset=10, **attributes)[0]
        np.testing.assert_array_equal(bare, integer_convolution(x, w, 0, 0, attributes))


@pytest.mark.parametrize("constant", [(), (3,)])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("x_type", BYTES)
def test_qlinear_conv(x_type, per_channel, constant) -> None:
    rng = np.random.default_rng(2)
    for shape, kernel, attributes in CASES:
        channels = kernel[0] if per_channel else 1
        x, w = integers(rng, x_type, *shape), integers(rng, np.int8, *kernel)
        w_zero = np.zeros(channels, np.int8) if per_channel else integers(rng, np.int8)
        w_scale = rng.uniform(0.01, 0.02, channels).astype(np.float32)
        bias = rng.integers(-2000, 2000, kernel[0]).astype(np.int32)
        given = [
            x, np.float32(0.05), integers(rng, x_type), w, w_scale if per_channel else w_scale[0],
            w_zero, np.float32(1.5), integers(rng, x_type), bias,
        ]  # fmt: skip
        given = [np.asarray(a) for a in given]
        got = run_npu("QLinearConv", given, opset=10, constant=constant, **attributes)[0]
        sums = integer_convolution(x, w, given[2], w_zero, attributes)
        sums += bias.reshape(-1, *[1] * (x.ndim - 2))
        scales = np.float32(0.05) * w_scale / np.float32(1.5)
        scaled = sums.astype(np.float32) * scales.reshape(-1, *[1] * (x.ndim - 2))
        info = np.iinfo(x_type)
        expected = np.clip(np.rint(scaled) + given[7], info.min, info.max).astype(x_type)
        assert got.dtype == x_type
        np.testing.assert_array_equal(got, expected)
        # Of 7 bits: without AVX-VNNI the CPU provider adds pairs of products in int16.
        given[3] = w // 2
        got = run_npu("QLinearConv", given, opset=10, constant=constant, **attributes)[0]
        np.testing.assert_array_equal(got, run_cpu("QLinearConv", given, opset=10, **attributes)[0])


@pytest.mark.parametrize("constant", [(), (3,)])
@pytest.mark.parametrize("b_type", BYTES)
@pytest.mark.parametrize("a_type", BYTES)
def test_qlinear_matmul(a_type, b_type, constant) -> None:
    rng = np.random.default_rng(3)
    shapes = [((3, 4), (4, 5)), ((2, 3, 70), (70, 33)), ((2, 5, 9), (2, 9, 4)), ((0, 4), (4, 3))]
    for a_shape, b_shape in shapes:
        a, b = integers(rng, a_type, *a_shape), integers(rng, b_type, *b_shape)
        for columns in (1, b_shape[-1]):
            b_scale = rng.uniform(0.01, 0.02, columns).astype(np.float32)
            b_zero = integers(rng, b_type, columns)
            given = [
                a, np.float32(0.05), integers(rng, a_type), b, b_scale, b_zero, np.float32(0.75),
                integers(rng, a_type),
            ]  # fmt: skip
            given = [np.asarray(v) for v in given]
            got = run_npu("QLinearMatMul", given, opset=10, constant=constant)[0]
            sums = (a.astype(np.int64) - given[2]) @ (b.astype(np.int64) - b_zero)
            scaled = sums.astype(np.float32) * (np.float32(0.05) * b_scale / np.float32(0.75))
            info = np.iinfo(a_type)
            expected = np.clip(np.rint(scaled) + given[7], info.min, info.max).astype(a_type)
            assert got.dtype == a_type
            np.testing.assert_array_equal(got, expected)


WRONG = [
    ("QLinearConv", {2: np.zeros(2, np.uint8)}, "expected x_zero_point to be one uint8"),
    ("QLinearConv", {5: np.zeros(3, np.int8)}, "expected w_zero_point to be one int8"),
    ("QLinearConv", {4: np.ones(3, np.float32)}, "expected one scale of the second operand"),
    ("QLinearConv", {7: np.zeros(2, np.uint8)}, "one zero point of the result"),
    ("QLinearConv", {3: np.zeros((2, 4, 3, 3), np.int8)}, r"expected w \[M, C / group, kernel\]"),
    ("QLinearConv", {8: np.zeros(3, np.int32)}, r"expected B of shape \[2\]"),
    ("QLinearConv", {3: np.zeros((2, 3, 0, 3), np.int8)}, "expected a kernel with taps"),
]


@pytest.mark.parametrize("op, changed, message", WRONG, ids=str)
def test_wrong_operands_are_refused(op, changed, message) -> None:
    one, zero = np.asarray(np.float32(1)), np.zeros((), np.uint8)
    x, w, w_zero = np.zeros((1, 3, 5, 5), np.uint8), np.zeros((2, 3, 3, 3), np.int8), np.int8(0)
    given = [x, one, zero, w, one, np.asarray(w_zero), one, zero, np.zeros(2, np.int32)]
    for i, array in changed.items():
        given[i] = array
    with pytest.raises(Exception, match=message):
        Node(op, given, opset=10)(*given)

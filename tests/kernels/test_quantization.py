"""Quantisation by the standard operators, against NumPy and onnxruntime's own provider."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import Node, dtype_of, random, run_cpu, run_npu


def quantized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The operator's definition, in float32 as its schema computes."""
    low, high = np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))
    scale = (high - low) / np.float32(255)
    point = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    return np.clip(np.rint(x / scale) + point, 0, 255).astype(np.uint8), scale, point


@pytest.mark.parametrize("shape", [(1,), (3, 7), (257,), (2, 5, 4099), (70_000,)], ids=str)
@pytest.mark.parametrize(("low", "high"), [(-3, 5), (1, 2), (-2, -1)])
def test_dynamic_quantize_linear_is_its_definition(shape, low, high) -> None:
    x = np.random.default_rng(1).uniform(low, high, shape).astype(np.float32)
    got = run_npu("DynamicQuantizeLinear", [x], 3)
    for result, want in zip(got, quantized(x), strict=True):
        np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("shape", [(5,), (2, 300), ()], ids=str)
def test_dynamic_quantize_linear_of_zeros_is_that_of_the_cpu_provider(shape) -> None:
    x = np.zeros(shape, np.float32)
    for got, want in zip(
        run_npu("DynamicQuantizeLinear", [x], 3),
        run_cpu("DynamicQuantizeLinear", [x], 3),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_dynamic_quantize_linear_of_nothing_and_of_nan_has_defined_results() -> None:
    y, scale, point = run_npu("DynamicQuantizeLinear", [np.zeros((0, 4), np.float32)], 3)
    assert y.shape == (0, 4) and scale == 1 and point == 0
    x = np.ones(300, np.float32)
    x[280] = np.nan
    y, scale, point = run_npu("DynamicQuantizeLinear", [x], 3)
    assert np.isnan(scale) and point == 0 and not y.any()


# (shape of x, shape of the scales, attributes): one for all, of an axis, of each block
SCALES = [
    ((3, 700), (), {}),
    ((3, 700), (1,), {}),
    ((4, 300), (4,), {"axis": 0}),
    ((4, 300), (300,), {"axis": -1}),
    ((2, 5, 6), (5,), {"axis": 1}),
    ((4, 300), (4, 10), {"axis": 1, "block_size": 32}),  # the last block is shorter
    ((70, 5), (3, 5), {"axis": 0, "block_size": 32}),
    ((2, 6, 4), (2, 2, 4), {"axis": 1, "block_size": 3}),
    ((2, 6), (2, 1), {"axis": 1, "block_size": 2**40}),
]


def spread(values: np.ndarray, shape, attributes: dict) -> np.ndarray:
    """Scales or zero points for each element of x."""
    if values.size == 1 and "block_size" not in attributes:
        return np.full(shape, values.reshape(()))
    axis = attributes["axis"] % len(shape)
    if "block_size" in attributes:
        block = min(attributes["block_size"], shape[axis])
        return np.repeat(values, block, axis).take(range(shape[axis]), axis)
    return np.broadcast_to(values.reshape(-1, *[1] * (len(shape) - axis - 1)), shape)


@pytest.mark.parametrize("floats", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("integers", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("shape, of_scales, attributes", SCALES, ids=str)
def test_quantize_and_dequantize_linear(shape, of_scales, attributes, integers, floats) -> None:
    rng = np.random.default_rng(1)
    limits = np.iinfo(integers)
    x = random(rng, floats, *shape, low=-30, high=30)
    scale = random(rng, floats, *of_scales, low=0.05, high=0.2)
    scale = np.asarray(scale, dtype_of(floats))
    point = np.asarray(rng.integers(limits.min, limits.max, of_scales), integers)
    by = spread(scale.astype(np.float32), shape, attributes)
    plus = spread(point.astype(np.float32), shape, attributes)
    got = run_npu("QuantizeLinear", [x, scale, point], opset=23, **attributes)[0]
    expected = np.clip(np.rint(x.astype(np.float32) / by) + plus, limits.min, limits.max)
    assert got.dtype == np.dtype(integers)
    np.testing.assert_array_equal(got, expected.astype(integers))
    back = run_npu("DequantizeLinear", [got, scale, point], opset=23, **attributes)[0]
    expected = ((got.astype(np.float32) - plus) * by).astype(dtype_of(floats))
    assert back.dtype == dtype_of(floats)
    np.testing.assert_array_equal(back.astype(np.float32), expected.astype(np.float32))


def test_linear_quantisation_without_zero_points_and_of_int32() -> None:
    x, scale = np.array([-9, 0.5, 1.5, 2.5, 900], np.float32), np.array(1, np.float32)
    assert run_npu("QuantizeLinear", [x, scale])[0].tolist() == [0, 0, 2, 2, 255]  # to even
    got = run_npu("QuantizeLinear", [x, scale], opset=21, output_dtype=3)[0]  # int8
    assert got.dtype == np.int8 and got.tolist() == [-9, 0, 2, 2, 127]
    whole = np.array([-(2**31), 7, 2**31 - 1], np.int32)
    half = np.array(0.5, np.float32)
    assert run_npu("DequantizeLinear", [whole, half])[0].tolist() == [-(2.0**30), 3.5, 2.0**30]
    assert run_npu("QuantizeLinear", [whole, half], opset=13)[0].tolist() == [0, 14, 255]
    special = np.array([np.nan, np.inf, -np.inf], np.float32)
    assert run_npu("QuantizeLinear", [special, scale])[0].tolist()[1:] == [255, 0]
    assert run_npu("QuantizeLinear", [np.zeros((0, 3), np.float32), scale])[0].shape == (0, 3)


WRONG = [
    ((2, 6), (5,), {"axis": 1}, "a scale, or one for each of the 6 positions of axis 1"),
    ((2, 6), (6,), {"axis": 7}, "axis"),
    ((2, 6), (2, 2), {"axis": 1, "block_size": 2}, r"\[2, 3\], got shape \[2, 2\]"),
    ((2, 6), (2, 3), {"axis": 1, "block_size": -2}, "block_size of 0 or more"),
]


@pytest.mark.parametrize("shape, of_scales, attributes, message", WRONG, ids=str)
@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_wrong_scales_are_refused(op, shape, of_scales, attributes, message) -> None:
    x = np.ones(shape, np.float32 if op == "QuantizeLinear" else np.int8)
    scale = np.ones(of_scales, np.float32)
    with pytest.raises(Exception, match=message):
        Node(op, [x, scale], opset=23, **attributes)(x, scale)
    points = np.ones(4, np.uint8 if op == "QuantizeLinear" else np.int8)
    with pytest.raises(Exception, match="zero points of the scales' shape"):
        Node(op, [x, scale, points], opset=23, axis=1)(x, np.ones(6, np.float32), points)

"""Operators on lines and runs of a tensor, and other small ones, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import FLOATS, INTS, Node, assert_close, dtype_of, random, run_cpu, run_npu

SHAPES = [(4, 5), (2, 3, 7), (1, 300), (3, 1), (2, 0, 3), (5, 64, 3)]


@pytest.mark.parametrize("dtype", FLOATS)
def test_hardmax(dtype) -> None:
    rng = np.random.default_rng(1)
    for shape in SHAPES:
        x = random(rng, dtype, *shape)
        for axis in range(-x.ndim, x.ndim):
            got = run_npu("Hardmax", [x], opset=13, axis=axis)[0]
            expected = np.zeros(shape)
            if x.size:
                best = np.expand_dims(x.astype(np.float64).argmax(axis), axis)
                np.put_along_axis(expected, best, 1, axis)
            assert_close(got, expected, dtype)


def test_hardmax_before_version_13_flattens() -> None:
    x = random(np.random.default_rng(2), "float32", 2, 3, 4)
    got = run_npu("Hardmax", [x], opset=11, axis=1)[0]
    expected = np.eye(12, dtype=np.float32)[x.reshape(2, 12).argmax(1)].reshape(2, 3, 4)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(run_npu("Hardmax", [x], opset=11, axis=3)[0], np.ones_like(x))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_lp_normalization(dtype, p) -> None:
    rng = np.random.default_rng(3)
    for shape in SHAPES:
        x = random(rng, dtype, *shape)
        x[..., :1] = 0
        for axis in (0, -1):
            got = run_npu("LpNormalization", [x], opset=22, axis=axis, p=p)[0]
            wide = x.astype(np.float64)
            norm = np.linalg.norm(wide, p, axis, keepdims=True) if x.size else np.ones(1)
            assert_close(got, wide / np.where(norm == 0, 1, norm), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axes", [None, [1], [0, 2], [-1, -2], [0, 1, 2, 3]])
def test_mean_variance_normalization(dtype, axes) -> None:
    x = random(np.random.default_rng(4), dtype, 2, 3, 5, 7)
    attributes = {} if axes is None else {"axes": axes}
    got = run_npu("MeanVarianceNormalization", [x], opset=13, **attributes)[0]
    wide = x.astype(np.float64)
    over = tuple(axes or (0, 2, 3))
    mean, deviation = wide.mean(over, keepdims=True), wide.std(over, keepdims=True)
    expected = (wide - mean) / (deviation + 1e-9)
    near = {"float64": 1e-14, "float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=near)


@pytest.mark.parametrize("dtype", FLOATS)
def test_reduce_log_sum_exp(dtype) -> None:
    rng = np.random.default_rng(5)
    node = Node("ReduceLogSumExp", [random(rng, dtype, 1), np.zeros(1, np.int64)], opset=18)
    for shape, axes in [((4, 5), [1]), ((4, 5), [0]), ((2, 3, 5, 7), [0, 2]), ((3, 700), [-1])]:
        x = random(rng, dtype, *shape)
        wide = x.astype(np.float64)
        expected = np.log(np.exp(wide).sum(tuple(axes), keepdims=True))
        assert_close(node(x, np.array(axes))[0], expected, dtype, factor=4)
    far = random(rng, dtype, 3, 4) + 1000  # whose exponentials are infinite
    expected = np.log(np.exp(far.astype(np.float64) - 1000).sum(1, keepdims=True)) + 1000
    assert_close(node(far.astype(dtype_of(dtype)), np.array([1]))[0], expected, dtype, factor=8)
    for value in (np.inf, -np.inf, np.nan):
        x = np.full((2, 3), value, dtype_of(dtype))
        np.testing.assert_array_equal(node(x, np.array([1]))[0].astype(np.float64), [[value]] * 2)
    empty = node(np.zeros((2, 0), dtype_of(dtype)), np.array([1]))[0]
    assert np.isneginf(empty.astype(np.float64)).all()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, "bool"])
def test_eye_like(dtype) -> None:
    for shape in [(3, 5), (5, 3), (1, 1), (0, 4), (4, 0)]:
        x = np.zeros(shape, dtype_of(dtype))
        for k in (0, 1, -2, 4, -4, 100, -(2**40)):
            got = run_npu("EyeLike", [x], opset=22, k=k)[0]
            expected = np.eye(*shape, max(-9, min(9, k)))
            assert got.dtype == x.dtype
            np.testing.assert_array_equal(got.astype(np.float64), expected)
    assert run_npu("EyeLike", [np.ones((2, 2), np.float32)], opset=22, dtype=7)[0].dtype == np.int64
    with pytest.raises(Exception, match="expected a matrix"):
        Node("EyeLike", [x], opset=22)(np.zeros(3, dtype_of(dtype)))


@pytest.mark.parametrize("dtype", ["float32", "int8", "float64", "bool", "int16"])
def test_reverse_sequence(dtype) -> None:
    rng = np.random.default_rng(6)
    for shape in [(4, 3), (4, 3, 5), (7, 2, 0), (1, 1, 3), (0, 2)]:
        for batch_axis in (0, 1):
            x = random(rng, dtype, *shape)
            batch, steps = shape[batch_axis], shape[1 - batch_axis]
            lengths = rng.integers(0, steps + 1, batch)
            axes = {"batch_axis": batch_axis, "time_axis": 1 - batch_axis}
            got = run_npu("ReverseSequence", [x, lengths], opset=10, **axes)[0]
            expected = np.moveaxis(x, batch_axis, 0).copy()
            for row, length in zip(expected, lengths, strict=True):
                row[:length] = row[:length][::-1].copy()
            np.testing.assert_array_equal(got, np.moveaxis(expected, 0, batch_axis))


@pytest.mark.parametrize("length", [-1, 5, 2**62])
def test_wrong_lengths_of_reverse_sequence(length) -> None:
    x = np.zeros((4, 2), np.float32)
    with pytest.raises(Exception, match=r"expected sequence_lens in \[0, 5\)"):
        run_npu("ReverseSequence", [x, np.array([1, length])], opset=10)
    with pytest.raises(Exception, match=r"expected sequence_lens of shape \[2\]"):
        run_npu("ReverseSequence", [x, np.array([1])], opset=10)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_bit_shift(dtype) -> None:
    rng = np.random.default_rng(7)
    bits = np.iinfo(dtype).bits
    x = rng.integers(0, np.iinfo(dtype).max, (3, 400), dtype_of(dtype), endpoint=True)
    y = rng.integers(0, bits, (3, 1)).astype(dtype_of(dtype))
    for direction, expected in (("LEFT", x << y), ("RIGHT", x >> y)):
        got = run_npu("BitShift", [x, y], direction=direction)[0]
        np.testing.assert_array_equal(got, expected)
        far = run_npu("BitShift", [x, np.full(1, bits, x.dtype)], direction=direction)[0]
        assert not far.any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_mean_of_inputs_that_broadcast(dtype) -> None:
    rng = np.random.default_rng(8)
    inputs = [random(rng, dtype, *shape) for shape in [(3, 1, 600), (4, 1), ()]]
    expected = sum(a.astype(np.float64) for a in inputs) / 3
    assert_close(run_npu("Mean", inputs, opset=13)[0], expected, dtype, factor=4)
    assert_close(run_npu("Mean", inputs[:1], opset=13)[0], inputs[0], dtype)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad_with_attributes(mode) -> None:
    x = random(np.random.default_rng(9), "float32", 3, 4)
    got = run_npu("Pad", [x], opset=2, pads=[1, 2, 0, -1], value=2.5, mode=mode)[0]
    options = {"constant_values": 2.5} if mode == "constant" else {}
    expected = np.pad(x[:, :3], ((1, 0), (2, 0)), mode, **options)
    if mode == "reflect":  # the cropped column is reflected, too
        expected = np.pad(x, ((1, 0), (2, 0)), mode)[:, :-1]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("element", [1, 11, 10])  # float, double, float16
def test_windows(op, element) -> None:
    for size in (1, 2, 17, 1000):
        for periodic in (0, 1):
            options = {"opset": 17, "output_datatype": element, "periodic": periodic}
            given = [np.array(size)]
            got = run_npu(op, given, **options)[0]
            options["output_datatype"] = 11
            expected = run_cpu(op, given, **options)[0]
            near = 2.0**-10 if element == 10 else 1e-6
            np.testing.assert_allclose(got, expected, rtol=0, atol=near, equal_nan=True)
    with pytest.raises(Exception, match="expected a size of 0 or more"):
        run_npu(op, [np.array(-1)], opset=17)


def test_bit_cast() -> None:
    x = random(np.random.default_rng(10), "float32", 3, 5)
    got = run_npu("BitCast", [x], opset=26, to=6)[0]
    np.testing.assert_array_equal(got, x.view(np.int32))
    assert run_npu("BitCast", [x[:0]], opset=26, to=12)[0].shape == (0, 5)
    with pytest.raises(Exception, match=r"size|bit"):
        run_npu("BitCast", [x], opset=26, to=7)

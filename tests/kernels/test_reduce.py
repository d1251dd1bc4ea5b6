"""Reductions, ArgMax/ArgMin, TopK, cumulative operators and normalisations."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import FLOATS, INTS, RTOL, Node, assert_close, dtype_of, random, run_npu

EPSILON = float(np.float32(1e-3))  # an attribute is a float32
REDUCIBLE = [*FLOATS, "int32", "int64", "uint32", "uint64"]


def wide(array: np.ndarray) -> np.ndarray:
    """The dtype of the reference: float64 for floats."""
    return array.astype(np.float64) if array.dtype.kind not in "iub" else array


def mean(x: np.ndarray, axis, keepdims: bool) -> np.ndarray:
    return np.mean(x.astype(np.float64), axis=axis, keepdims=keepdims)


REDUCTIONS = {
    "ReduceSum": lambda x, **k: np.sum(x, dtype=x.dtype, **k),
    "ReduceMean": mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": lambda x, **k: np.prod(x, dtype=x.dtype, **k),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, dtype=x.dtype, **k),
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), dtype=x.dtype, **k),
    "ReduceLogSum": lambda x, **k: np.log(np.sum(wide(x).astype(np.float64), **k)),
    "ReduceL2": lambda x, **k: np.sqrt(np.sum(wide(x * x).astype(np.float64), **k)),
}
AXES = [
    ((3, 4, 5), (0,)),
    ((3, 4, 5), (1,)),
    ((3, 4, 5), (-1,)),
    ((3, 4, 5), (0, 2)),
    ((3, 4, 5), (2, 0, 1)),
    ((2, 3, 4, 5), (1, -1)),
    ((2, 3, 4, 5), (0, 2)),
    ((3, 4, 5), ()),
    ((600, 3), (0,)),
    ((3, 600), (1,)),
    ((2, 1, 1000), (0, 1)),
    ((1, 7, 1), (1,)),
    ((), ()),
    ((0, 3), (1,)),
]


def ints(values) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("dtype", REDUCIBLE)
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reduction(op: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    low, high = (0.5, 1.5) if op == "ReduceProd" and dtype in FLOATS else (-4, 4)
    if op == "ReduceLogSum":
        low, high = 1, 5
    example = random(rng, dtype, 1)
    for keepdims in (0, 1):
        node = Node(op, [example, ints(())], keepdims=keepdims)
        for shape, axes in AXES:
            if op == "ReduceProd" and np.prod(shape) > 100:
                continue  # exceeds the range of the 16-bit floats
            x = random(rng, dtype, *shape, low=low, high=high)
            expected = REDUCTIONS[op](wide(x), axis=axes or None, keepdims=bool(keepdims))
            if dtype in INTS:
                expected = np.trunc(expected).astype(dtype)
            got = node(x, ints(axes))[0]
            if dtype in FLOATS and op in ("ReduceSum", "ReduceMean"):
                # Terms of both signs cancel: the error is relative to their size.
                np.testing.assert_allclose(
                    got.astype(np.float64), expected, rtol=RTOL[dtype], atol=4 * RTOL[dtype]
                )
                assert got.shape == expected.shape
            else:
                assert_close(got, np.asarray(expected), dtype, factor=2)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_axes_as_attributes(op: str) -> None:
    x = random(np.random.default_rng(2), "float32", 3, 4, 5)
    got = run_npu(op, [x], opset=11, axes=[0, -1], keepdims=0)[0]
    expected = REDUCTIONS[op](wide(x), axis=(0, 2), keepdims=False)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    everything = run_npu(op, [x], opset=11)[0]
    assert everything.shape == (1, 1, 1)


def test_noop_with_empty_axes() -> None:
    x = np.array([[1, -2], [3, 4]], np.float32)
    for op, expected in [("ReduceSum", x), ("ReduceSumSquare", x * x), ("ReduceL2", np.abs(x))]:
        assert_close(run_npu(op, [x], noop_with_empty_axes=1)[0], expected, "float32")


@pytest.mark.parametrize(
    "op, value",
    [
        ("ReduceSum", 0),
        ("ReduceProd", 1),
        ("ReduceMax", -np.inf),
        ("ReduceMin", np.inf),
        ("ReduceL2", 0),
    ],
)
def test_empty_reduction(op: str, value: float) -> None:
    got = run_npu(op, [np.zeros((2, 0, 3), np.float32), np.array([1])], opset=20)[0]
    assert_close(got, np.full((2, 1, 3), value), "float32")


def test_empty_integer_reduction() -> None:
    empty = np.zeros((0,), np.int32)
    assert run_npu("ReduceMax", [empty], opset=20)[0] == np.iinfo(np.int32).min
    with pytest.raises(Exception, match=r"\[ReduceMean\] expected elements to average"):
        run_npu("ReduceMean", [empty])


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("shape, axes", AXES, ids=str)
@pytest.mark.parametrize("op, reference", [("ReduceMax", np.any), ("ReduceMin", np.all)])
def test_reduction_of_bools(op, reference, shape, axes, keepdims) -> None:
    for share in (0.02, 0.98):
        x = np.random.default_rng(5).random(shape) < share
        got = run_npu(op, [x, ints(axes)], opset=20, keepdims=keepdims)[0]
        over = axes or tuple(range(x.ndim))
        assert_close(got, reference(x, axis=over, keepdims=bool(keepdims)), "bool")


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ReduceSum"])
@pytest.mark.parametrize("axis", [0, 1])
def test_nan_propagates(op: str, axis: int) -> None:
    x = random(np.random.default_rng(3), "float32", 70, 70)
    x[13, 50] = np.nan
    got = run_npu(op, [x, np.array([axis])], keepdims=0)[0]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x.sum(axis)))


def test_long_sums_stay_accurate() -> None:
    x = np.full((3, 1_000_003), 0.1, np.float32)
    exact = np.float64(np.float32(0.1)) * 1_000_003
    np.testing.assert_allclose(run_npu("ReduceSum", [x, np.array([1])])[0], exact, rtol=2.0**-22)
    down = run_npu("ReduceSum", [np.ascontiguousarray(x.T), np.array([0])])[0]
    np.testing.assert_allclose(down, exact, rtol=2.0**-22)


def test_bad_axes_are_errors() -> None:
    x = np.zeros((2, 3), np.float32)
    node = Node("ReduceSum", [x, np.array([0])])
    for axes, message in [
        ([2], "axis"),
        ([-3], "axis"),
        ([0, -2], "repetition"),
        ([2**40], "axis"),
    ]:
        with pytest.raises(Exception, match=rf"\[ReduceSum\] expected .*{message}"):
            node(x, np.array(axes))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_max_and_arg_min(op: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    function = np.argmax if op == "ArgMax" else np.argmin
    for shape, axis in [
        ((5, 6, 7), 0),
        ((5, 6, 7), 1),
        ((5, 6, 7), -1),
        ((1000,), 0),
        ((3, 129), 1),
    ]:
        x = np.round(wide(random(rng, dtype, *shape))).astype(dtype_of(dtype))  # many ties
        first = run_npu(op, [x], axis=axis, keepdims=0)[0]
        assert_close(first, function(x, axis), "int64")
        last = run_npu(op, [x], axis=axis, select_last_index=1)[0]
        backwards = x.shape[axis] - 1 - function(np.flip(x, axis), axis)
        assert_close(last, np.expand_dims(backwards, axis), "int64")


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_arg_max_and_arg_min_return_the_first_nan(op: str) -> None:
    x = np.array([[1, np.nan, 5, np.nan, 0]], np.float32)
    assert run_npu(op, [x], axis=1)[0] == 1
    assert run_npu(op, [x], axis=1, select_last_index=1)[0] == 3
    assert run_npu(op, [np.tile(x, 100)], axis=1)[0] == 1
    assert run_npu(op, [np.tile(x, 100)], axis=1, select_last_index=1)[0] == 498
    with pytest.raises(Exception, match=rf"\[{op}\] expected elements along axis"):
        run_npu(op, [np.zeros((2, 0), np.float32)], axis=1)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
@pytest.mark.parametrize("largest", [0, 1])
def test_top_k(largest: int, dtype: str) -> None:
    rng = np.random.default_rng(5)
    for shape, axis, ks in [
        ((4, 200), -1, (1, 12, 200, 0)),
        ((5, 6, 7), 1, (3,)),
        ((30, 2), 0, (29,)),
    ]:
        x = np.round(wide(random(rng, dtype, *shape))).astype(dtype_of(dtype))  # many ties
        if dtype in FLOATS:
            x[0, ...] = np.nan
        key = wide(x) if dtype in FLOATS else x.astype(object)
        order = np.argsort(-key if largest else key, axis, kind="stable")
        if largest and dtype in FLOATS:  # NaN counts as the max and comes first
            order = np.argsort(np.where(np.isnan(key), -np.inf, -key), axis, kind="stable")
        node = Node("TopK", [x, np.array([1])], 2, axis=axis, largest=largest, opset=24)
        for k in ks:
            values, indices = node(x, np.array([k]))
            expected = np.take(order, np.arange(k), axis)
            assert_close(indices, expected, "int64")
            assert values.dtype == x.dtype
            np.testing.assert_array_equal(wide(values), wide(np.take_along_axis(x, expected, axis)))


def test_top_k_of_opset_9_has_k_as_an_attribute() -> None:
    x = np.array([[3, 1, 2], [4, 6, 5]], np.float32)
    values, indices = run_npu("TopK", [x], 2, opset=9, k=2)
    assert values.tolist() == [[3, 2], [6, 5]] and indices.tolist() == [[0, 2], [1, 2]]


def test_top_k_beyond_the_axis_size_is_an_error() -> None:
    node = Node("TopK", [np.zeros((2, 3), np.float32), np.array([1])], 2)
    for k in (4, -1, 2**62):
        with pytest.raises(Exception, match=r"\[TopK\] expected K in \[0, 3\]"):
            node(np.zeros((2, 3), np.float32), np.array([k]))


@pytest.mark.parametrize("dtype", REDUCIBLE)
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative_sum(reverse: int, exclusive: int, dtype: str) -> None:
    rng = np.random.default_rng(6)
    for shape, axis in [((3, 4, 5), 0), ((3, 4, 5), -2), ((3, 700), 1), ((7,), 0), ((0, 2), 0)]:
        x = random(rng, dtype, *shape, low=0)
        v = np.flip(wide(x), axis) if reverse else wide(x)
        sums = np.cumsum(v, axis, dtype=v.dtype)
        sums = sums - v if exclusive else sums
        expected = np.flip(sums, axis) if reverse else sums
        got = run_npu("CumSum", [x, np.array(axis)], exclusive=exclusive, reverse=reverse)[0]
        assert_close(got, expected, dtype)


@pytest.mark.parametrize("dtype", REDUCIBLE)
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative_product(reverse: int, exclusive: int, dtype: str) -> None:
    rng = np.random.default_rng(8)
    low, high = (0.5, 1.5) if dtype in FLOATS else (1, 4)  # integer products wrap
    for shape, axis in [((3, 4, 5), 0), ((3, 4, 5), -2), ((3, 100), 1), ((7,), 0), ((0, 2), 0)]:
        x = random(rng, dtype, *shape, low=low, high=high)
        v = np.flip(wide(x), axis) if reverse else wide(x)
        if exclusive:
            front = np.ones_like(v.take([0] * min(1, v.shape[axis]), axis))
            v = np.concatenate([front, v.take(range(v.shape[axis] - 1), axis)], axis)
        products = np.cumprod(v, axis, dtype=v.dtype)
        expected = np.flip(products, axis) if reverse else products
        inputs = [x, np.array(axis)]
        got = run_npu("CumProd", inputs, opset=26, exclusive=exclusive, reverse=reverse)[0]
        assert_close(got, expected, dtype)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
def test_cumulative_op_with_bad_axis_is_an_error(op: str) -> None:
    node = Node(op, [np.zeros((2, 3), np.float32), np.array(0)], opset=26)
    for axis in (2, -3, 2**62):
        with pytest.raises(Exception, match=rf"\[{op}\].*axis"):
            node(np.zeros((2, 3), np.float32), np.array(axis))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_normalization(axis: int, dtype: str) -> None:
    rng = np.random.default_rng(7)
    x = random(rng, dtype, 3, 4, 600)
    over = tuple(range(axis % 3, 3))
    for scale_shape, bias_shape in [
        (x.shape[axis % 3 :], x.shape[axis % 3 :]),
        ((1,), None),
        ((4, 1), (600,)),
    ]:
        scale = random(rng, dtype, *scale_shape)
        bias = None if bias_shape is None else random(rng, dtype, *bias_shape)
        inputs = [x, scale] if bias is None else [x, scale, bias]
        y, mean_out, inverse = run_npu("LayerNormalization", inputs, 3, axis=axis, epsilon=EPSILON)
        v = wide(x)
        centre = v.mean(over, keepdims=True)
        factor = 1 / np.sqrt(v.var(over, keepdims=True) + EPSILON)
        expected = (v - centre) * factor * wide(scale) + (0 if bias is None else wide(bias))
        # Terms cancel against the bias: the error is relative to their size, at most 4 * 2 + 4.
        np.testing.assert_allclose(
            y.astype(np.float64), expected, rtol=RTOL[dtype], atol=12 * max(RTOL[dtype] / 8, 1e-15)
        )
        assert y.dtype == x.dtype
        np.testing.assert_allclose(mean_out, centre, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(inverse, factor, rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axis", [-1, 1])
def test_rms_normalization(axis: int, dtype: str) -> None:
    rng = np.random.default_rng(8)
    x = random(rng, dtype, 3, 4, 600)
    over = tuple(range(axis % 3, 3))
    for scale_shape in [x.shape[axis % 3 :], (600,), (1,)]:
        scale = random(rng, dtype, *scale_shape)
        got = run_npu("RMSNormalization", [x, scale], opset=23, axis=axis, epsilon=EPSILON)[0]
        v = wide(x)
        expected = v / np.sqrt((v * v).mean(over, keepdims=True) + EPSILON) * wide(scale)
        assert_close(got, expected, dtype)


def test_normalizations_check_their_inputs() -> None:
    x = np.ones((2, 3), np.float32)
    node = Node("LayerNormalization", [x, x[0]])
    with pytest.raises(Exception, match=r"\[LayerNormalization\] expected Scale that broadcasts"):
        node(x, np.ones((2, 2, 3), np.float32))
    with pytest.raises(Exception, match=r"\[LayerNormalization\] expected"):
        node(x, np.ones(4, np.float32))
    assert node(np.ones((0, 3), np.float32), x[0])[0].shape == (0, 3)
    with pytest.raises(Exception, match=r"\[LayerNormalization\] expected elements to normalise"):
        node(np.ones((2, 0), np.float32), np.ones(1, np.float32))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_scalar_accepts_axes_0_and_minus_1(axis: int, keepdims: int) -> None:
    x = np.array(-3.0, np.float32)
    for op, expected in (("ReduceSum", -3), ("ReduceMean", -3), ("ReduceMax", -3), ("ReduceL2", 3)):
        got = run_npu(op, [x, np.array([axis])], keepdims=keepdims)[0]
        assert_close(got, np.float32(expected), "float32")
    for op in ("ArgMax", "ArgMin"):
        got = run_npu(op, [x], axis=axis, keepdims=keepdims)[0]
        assert got.shape == () and got.dtype == np.int64 and got == 0
    with pytest.raises(Exception, match=r"\[ReduceSum\] expected an axis in \[-1, 0\], got 1"):
        run_npu("ReduceSum", [x, np.array([1])])

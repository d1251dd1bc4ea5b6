"""Max, average and Lp pooling against one window at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from onnx_nodes import FLOATS, Node, assert_close, dtype_of, random, run_npu

MAX_TYPES = [*FLOATS, "int8", "uint8"]
# (spatial shape, attributes)
WINDOWS = [
    ((9,), {"kernel_shape": [3]}),
    ((50,), {"kernel_shape": [20], "strides": [7], "pads": [3, 11]}),
    ((200,), {"kernel_shape": [130], "strides": [9]}),
    ((8, 9), {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 2, 1]}),
    ((7, 40), {"kernel_shape": [2, 5], "strides": [3, 2], "pads": [1, 4, 0, 3]}),
    ((11, 13), {"kernel_shape": [3, 2], "dilations": [2, 4], "pads": [2, 1, 1, 1]}),
    ((6, 7), {"kernel_shape": [3, 3], "strides": [2, 3], "ceil_mode": 1}),
    ((5, 5), {"kernel_shape": [2, 2], "strides": [4, 4], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((1, 1), {"kernel_shape": [1, 1]}),
    ((2, 8), {"kernel_shape": [2, 3], "dilations": [3, 1], "pads": [1, 0, 1, 0]}),  # no row visible
    ((4, 5, 6), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 3], "pads": [1, 2, 0, 0, 1, 1]}),
    ((3, 3, 3, 4), {"kernel_shape": [2, 2, 2, 3], "pads": [1, 0, 0, 0, 0, 0, 1, 2]}),
]


def axis_windows(n: int, d: int, attributes: dict) -> list[list[int]]:
    """The positions of each window along axis d, including those in the padding."""
    rank = len(attributes["kernel_shape"])
    kernel = attributes["kernel_shape"][d]
    stride = attributes.get("strides", [1] * rank)[d]
    dilation = attributes.get("dilations", [1] * rank)[d]
    pads = attributes.get("pads", [0] * 2 * rank)
    before, after = pads[d], pads[d + rank]
    room = n + before + after - (kernel - 1) * dilation - 1
    count = (math.ceil if attributes.get("ceil_mode") else math.floor)(room / stride) + 1
    starts = [o * stride - before for o in range(count) if o * stride - before < n]
    return [[p for p in range(s, s + kernel * dilation, dilation) if p < n + after] for s in starts]


def pool(x: np.ndarray, attributes: dict, reduce) -> np.ndarray:
    """reduce(elements [N, C, n], their flat indices in the plane, positions with the padding)."""
    spatial = x.shape[2:]
    axes = [axis_windows(n, d, attributes) for d, n in enumerate(spatial)]
    flat = x.reshape(*x.shape[:2], -1)
    results = []
    for windows in itertools.product(*axes):
        inside = [
            np.ravel_multi_index(p, spatial)
            for p in itertools.product(*windows)
            if all(0 <= i < n for i, n in zip(p, spatial, strict=True))
        ]
        padded = math.prod(map(len, windows))
        inside = np.array(inside, np.int64)
        results.append(reduce(flat[:, :, inside], inside, padded))
    return np.stack(results, -1).reshape(*x.shape[:2], *map(len, axes))


def greatest(least):
    return lambda e, *_: e.max(-1) if e.shape[-1] else np.full(e.shape[:2], least)


@pytest.mark.parametrize("dtype", MAX_TYPES)
@pytest.mark.parametrize("spatial, attributes", WINDOWS, ids=str)
def test_max_pool(spatial, attributes, dtype) -> None:
    x = random(np.random.default_rng(3), dtype, 2, 3, *spatial, low=-90, high=90)
    least = -np.inf if dtype in FLOATS else np.iinfo(dtype).min
    expected = pool(x, attributes, greatest(least))
    assert_close(run_npu("MaxPool", [x], opset=22, **attributes)[0], expected, dtype)
    if attributes.get("dilations") == [3, 1]:
        return  # a window without elements has no index of the max
    # With indices: flat indices of the max over all planes, in either order.
    for order in (0, 1):
        y, at = run_npu("MaxPool", [x], 2, opset=22, storage_order=order, **attributes)
        assert_close(y, expected, dtype)
        plane = math.prod(spatial)
        offset = np.arange(6).reshape(2, 3, *[1] * len(spatial)) * plane
        places = np.unravel_index(at - offset, spatial, order="F" if order else "C")
        n, c = np.indices(y.shape)[:2]
        np.testing.assert_array_equal(x[(n, c, *places)], y)


@pytest.mark.parametrize("padded", [0, 1])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spatial, attributes", WINDOWS, ids=str)
def test_average_pool(spatial, attributes, dtype, padded) -> None:
    x = random(np.random.default_rng(4), dtype, 2, 3, *spatial, low=1, high=2)
    expected = pool(
        x.astype(np.float64),
        attributes,
        lambda e, _, count: e.sum(-1) / max(1, count if padded else e.shape[-1]),
    )
    got = run_npu("AveragePool", [x], opset=22, count_include_pad=padded, **attributes)[0]
    assert_close(got, expected, dtype, factor=4)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("spatial, attributes", WINDOWS, ids=str)
def test_lp_pool(spatial, attributes, dtype, p) -> None:
    x = random(np.random.default_rng(4), dtype, 2, 3, *spatial, low=-2, high=2)
    wide = np.abs(x.astype(np.float64))
    expected = pool(wide, attributes, lambda e, *_: (e**p).sum(-1) ** (1 / p))
    got = run_npu("LpPool", [x], opset=22, p=p, **attributes)[0]
    assert_close(got, expected, dtype, factor=16)  # powers and roots of a sum of up to 130 terms
    if p == 2:
        axes = tuple(range(2, x.ndim))
        expected = np.sqrt((wide**2).sum(axes, keepdims=True))
        assert_close(run_npu("GlobalLpPool", [x], opset=22)[0], expected, dtype, factor=16)


def test_lp_pool_takes_positive_exponents_only() -> None:
    x = np.ones((1, 1, 4), np.float32)
    with pytest.raises(Exception, match=r"\[LpPool\] expected p of 1 or more, got 0"):
        run_npu("LpPool", [x], opset=22, kernel_shape=[2], p=0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 2, 30, 41), (2, 1, 3, 4, 5), (3, 2, 1, 1)])
def test_global_pools(shape, dtype) -> None:
    x = random(np.random.default_rng(5), dtype, *shape, low=1, high=2)
    axes = tuple(range(2, len(shape)))
    wide = x.astype(np.float64)
    assert_close(run_npu("GlobalMaxPool", [x], opset=22)[0], wide.max(axes, keepdims=True), dtype)
    average = run_npu("GlobalAveragePool", [x], opset=22)[0]
    assert_close(average, wide.mean(axes, keepdims=True), dtype, factor=8)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width, kernel", [(9, 3), (300, 200)])
def test_max_pool_propagates_nan(dtype, width, kernel) -> None:
    x = np.zeros((1, 1, width), dtype_of(dtype))
    x[..., 1] = np.nan
    x[..., width // 2] = np.inf
    y = run_npu("MaxPool", [x], opset=22, kernel_shape=[kernel])[0].astype(np.float32)
    np.testing.assert_array_equal(np.isnan(y[0, 0]), np.arange(y.size) <= 1)
    y, at = run_npu("MaxPool", [x], 2, opset=22, kernel_shape=[kernel])
    assert np.isnan(y[0, 0, 0].astype(np.float32)) and at[0, 0, 0] == 1


@pytest.mark.parametrize(
    "auto_pad, before", [("SAME_UPPER", 0), ("SAME_LOWER", 1), ("VALID", None)]
)
def test_auto_pad(auto_pad, before) -> None:
    x = random(np.random.default_rng(6), "float32", 1, 2, 8, 8)
    pads = [] if before is None else [before, before, 1 - before, 1 - before]
    explicit = {"kernel_shape": [3, 2], "strides": [2, 1], **({"pads": pads} if pads else {})}
    if before is not None:
        explicit["pads"] = [before, before, 1 - before, 1 - before]
    expected = pool(x, explicit, greatest(-np.inf))
    explicit.pop("pads", None)
    got = run_npu("MaxPool", [x], opset=22, auto_pad=auto_pad, **explicit)[0]
    assert_close(got, expected, "float32")


def test_empty_batch() -> None:
    empty = np.zeros((0, 3, 4, 5), np.float32)
    assert run_npu("MaxPool", [empty], kernel_shape=[2, 2])[0].shape == (0, 3, 3, 4)
    assert run_npu("AveragePool", [empty], kernel_shape=[2, 2])[0].shape == (0, 3, 3, 4)
    assert run_npu("GlobalAveragePool", [empty])[0].shape == (0, 3, 1, 1)


HUGE = 2**62
HOSTILE = [
    ({"kernel_shape": [0, 2]}, "kernel_shape from 1"),
    ({"kernel_shape": [-1, 2]}, "kernel_shape from 1"),
    ({"kernel_shape": [HUGE, 2]}, "kernel_shape from 1"),
    ({"kernel_shape": [2, 2], "strides": [0, 1]}, "strides from 1"),
    ({"kernel_shape": [2, 2], "strides": [1]}, "2 strides"),
    ({"kernel_shape": [2, 2], "dilations": [0, 1]}, "dilations from 1"),
    ({"kernel_shape": [2, 2], "dilations": [HUGE, HUGE]}, "dilations from 1"),
    ({"kernel_shape": [2, 2], "pads": [-1, 0, 0, 0]}, "pads from 0"),
    ({"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}, "pads smaller than the kernel"),
    ({"kernel_shape": [2, 2], "pads": [0, 0]}, "4 pads"),
    ({"kernel_shape": [2, 2], "auto_pad": "SOME"}, "auto_pad NOTSET"),
    ({"kernel_shape": [9, 9]}, "window that fits"),
    ({"kernel_shape": [2**30, 2**30], "dilations": [2**30, 2**30]}, "window that fits"),
    ({"kernel_shape": [2]}, "spatial dimensions"),
]


@pytest.mark.parametrize("attributes, message", HOSTILE, ids=str)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_hostile_attributes(op, attributes, message) -> None:
    """Refused by onnx's shape inference or by the kernel; the session stays usable."""
    x = np.ones((1, 1, 4, 4), np.float32)
    with pytest.raises(
        Exception, match=rf"\[{op}\] expected .*{message}|ShapeInference|shape inference"
    ):
        Node(op, [x], opset=22, **attributes)(x)
    assert run_npu(op, [x], opset=22, kernel_shape=[4, 4])[0].item() == 1


def test_huge_window_over_small_input_is_fast() -> None:
    x = np.ones((1, 1, 4, 4), np.float32)
    big = 2**29
    pads = [big - 4, big - 4, 0, 0]
    got = run_npu("MaxPool", [x], opset=22, kernel_shape=[big, big], strides=[big, big], pads=pads)
    assert got[0].shape == (1, 1, 1, 1) and got[0].item() == 1


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_unpool_brings_back_what_max_pool_chose(dtype) -> None:
    x = random(np.random.default_rng(9), dtype, 2, 3, 6, 8)
    how = {"kernel_shape": [2, 2], "strides": [2, 2]}
    y, at = run_npu("MaxPool", [x], 2, opset=22, **how)
    expected = np.zeros_like(x)
    expected.ravel()[at.ravel()] = y.ravel()
    np.testing.assert_array_equal(run_npu("MaxUnpool", [y, at], opset=22, **how)[0], expected)
    # A larger output has zeros behind; indices still count in the smaller one.
    shape = np.array([2, 3, 7, 8])
    larger = run_npu("MaxUnpool", [y, at, shape], opset=22, **how)[0]
    np.testing.assert_array_equal(larger, np.pad(expected, [(0, 0)] * 2 + [(0, 1), (0, 0)]))


def test_wrong_arguments_of_max_unpool_are_refused() -> None:
    y, at = np.ones((1, 1, 2, 2), np.float32), np.zeros((1, 1, 2, 2), np.int64)
    shape = np.array([1, 1, 2, 2])
    node = Node("MaxUnpool", [y, at, shape], kernel_shape=[1, 1])
    assert node(y, at, shape)[0].ravel().tolist() == [1, 0, 0, 0]
    for index in (-1, 4, 2**62):
        with pytest.raises(Exception, match=r"indices in \[0, 4\)"):
            node(y, at + index, shape)
    for wrong in ([1, 1, 2, 1], [1, 2, 2, 2], [4], [1, 1, 2, -2]):
        with pytest.raises(Exception, match="output_shape of at least"):
            node(y, at, np.array(wrong))
    with pytest.raises(Exception, match="I of X's shape"):
        node(y, at[..., :1], shape)
    with pytest.raises(Exception, match="pads that leave an output"):
        run_npu("MaxUnpool", [y, at], kernel_shape=[1, 1], pads=[1, 0, 1, 0])

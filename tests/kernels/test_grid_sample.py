"""GridSample of all floats, modes and paddings, against a loop over single reads."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from onnx_nodes import FLOATS, Node, assert_close, dtype_of, random, run_npu
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

REFUSED = (Fail, InvalidArgument, RuntimeException)
PADDINGS = ["zeros", "border", "reflection"]
MODES = ["linear", "nearest", "cubic"]
SPATIAL = [((5,), (4,)), ((5, 7), (3, 4)), ((1, 6), (2, 70)), ((3, 4, 5), (2, 3, 4))]


def reflected(x: float, n: int, align_corners: bool) -> float:
    """Reflects x between the two bounds until it is inside."""
    low, high = (0, n - 1) if align_corners else (-0.5, n - 0.5)
    if low == high:
        return 0
    while not low <= x <= high:
        x = 2 * low - x if x < low else 2 * high - x
    return x


def padded(x: float, n: int, padding: str, align_corners: bool) -> float:
    if padding == "reflection":
        x = reflected(x, n, align_corners)
    return x if padding == "zeros" else min(max(x, 0), n - 1)


def cubic(distance: float, a: float = -0.75) -> float:
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0


def taps(coordinate: float, n: int, mode: str, padding: str, align: bool) -> dict[int, float]:
    """The weight of each position of one dimension."""
    x = (coordinate + 1) / 2 * (n - 1) if align else ((coordinate + 1) * n - 1) / 2
    weights: dict[int, float] = {}
    if mode == "cubic":
        for at in range(math.floor(x) - 1, math.floor(x) + 3):
            place = int(padded(at, n, padding, align))
            weights[place] = weights.get(place, 0) + cubic(x - at)
    elif mode == "nearest":
        weights = {round(padded(x, n, padding, align)): 1}
    else:
        x = padded(x, n, padding, align)
        weights = {at: 1 - abs(x - at) for at in (math.floor(x), math.floor(x) + 1)}
    return {at: weight for at, weight in weights.items() if 0 <= at < n}


def grid_sample(x: np.ndarray, grid: np.ndarray, mode: str, padding: str, align: bool):
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for place in np.ndindex(grid.shape[:-1]):
        axes = [
            taps(float(c), n, mode, padding, align)
            for c, n in zip(grid[place][::-1], x.shape[2:], strict=True)
        ]
        for tap in itertools.product(*(axis.items() for axis in axes)):
            read = x[(place[0], slice(None), *(at for at, _ in tap))].astype(np.float64)
            y[(place[0], slice(None), *place[1:])] += read * math.prod(w for _, w in tap)
    return y


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spatial, out", SPATIAL, ids=str)
def test_modes(spatial, out, mode: str, padding: str, align: int) -> None:
    rng = np.random.default_rng(0)
    x = random(rng, "float64", 2, 3, *spatial)
    grid = random(rng, "float64", 2, *out, len(spatial), low=-3, high=3)
    (y,) = run_npu(
        "GridSample", [x, grid], opset=22, mode=mode, padding_mode=padding, align_corners=align
    )
    expected = grid_sample(x, grid, mode, padding, bool(align))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("grid_dtype", FLOATS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_element_types(dtype: str, grid_dtype: str) -> None:
    rng = np.random.default_rng(1)
    x = random(rng, dtype, 1, 2, 5, 7)
    grid = random(rng, grid_dtype, 1, 3, 4, 2, low=-1.5, high=1.5)
    (y,) = run_npu("GridSample", [x, grid], opset=22)
    assert y.dtype == dtype_of(dtype)
    expected = grid_sample(x, grid, "linear", "zeros", False)
    # Half an ulp of the result, and the rounding of float32 positions.
    rtol = {"float64": 1e-12, "float32": 0, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
    np.testing.assert_allclose(
        y.astype(np.float64), expected, rtol=rtol, atol=1e-12 if dtype == "float64" else 1e-5
    )


@pytest.mark.parametrize("mode, newer", [("bilinear", "linear"), ("bicubic", "cubic")])
def test_opset_16_modes(mode: str, newer: str) -> None:
    rng = np.random.default_rng(2)
    x, grid = random(rng, "float32", 1, 2, 5, 7), random(rng, "float32", 1, 3, 4, 2, low=-1, high=1)
    (y,) = run_npu("GridSample", [x, grid], opset=16, mode=mode)
    np.testing.assert_allclose(y, grid_sample(x, grid, newer, "zeros", False), rtol=0, atol=1e-5)
    if mode == "bilinear":
        (default,) = run_npu("GridSample", [x, grid], opset=16)
        assert_close(default, y, "float32")


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", FLOATS)
def test_non_finite_and_huge_coordinates(dtype: str, mode: str, padding: str, align: int) -> None:
    """No read out of bounds; zeros outside the input; border padding at any distance."""
    biggest = 6e4 if dtype == "float16" else 1e30
    coordinates = [np.nan, np.inf, -np.inf, biggest, -biggest]
    points = np.array(list(itertools.product([*coordinates, 0.0], repeat=2)))
    grid = points.reshape(1, 6, 6, 2).astype(dtype_of(dtype))
    x = np.full((1, 2, 3, 4), 5, dtype_of(dtype))
    node = Node(
        "GridSample", [x, grid], opset=22, mode=mode, padding_mode=padding, align_corners=align
    )
    y = node(x, grid)[0].astype(np.float64)
    away = np.isinf(points).any(-1) | (np.abs(points) == biggest).any(-1)
    finite = np.isfinite(points).all(-1)
    if padding == "zeros":
        assert (y.reshape(2, -1)[:, away] == 0).all()
    elif mode != "cubic":
        np.testing.assert_allclose(y, 5, rtol=1e-2)  # the weights sum to one at any position
    else:  # the cubic weights of an infinite position are undefined
        np.testing.assert_allclose(y.reshape(2, -1)[:, finite], 5, rtol=1e-2)


@pytest.mark.parametrize(
    "x_shape, grid_shape",
    [((0, 2, 3, 4), (0, 5, 6, 2)), ((1, 0, 3, 4), (1, 5, 6, 2)), ((1, 2, 3, 4), (1, 0, 6, 2))],
)
def test_empty_inputs(x_shape: tuple, grid_shape: tuple) -> None:
    (y,) = run_npu("GridSample", [np.ones(x_shape, np.float32), np.ones(grid_shape, np.float32)])
    assert y.shape == (*x_shape[:2], *grid_shape[1:3])


@pytest.mark.parametrize(
    "x_shape, grid_shape, message",
    [
        ((1, 2, 0, 4), (1, 5, 6, 2), "non-empty spatial"),
        ((0, 2, 3, 0), (0, 5, 6, 2), "non-empty spatial"),
        ((1, 2, 3, 4), (2, 5, 6, 2), "expected a grid"),
        ((1, 2, 3, 4), (1, 5, 6, 3), "expected a grid"),
        ((1, 2, 3, 4), (1, 5, 6, 0), "expected a grid"),
        ((1, 2, 3, 4), (1, 5, 2), "expected a grid"),
        ((1, 2, 2, 2, 2, 2), (1, 1, 1, 1, 1, 4), "1 to 3 spatial"),
        ((1, 2), (1, 0), "1 to 3 spatial"),
    ],
)
def test_hostile_shapes(x_shape: tuple, grid_shape: tuple, message: str) -> None:
    x, grid = np.ones((1, 2, 3, 4), np.float32), np.zeros((1, 2, 2, 2), np.float32)
    node = Node("GridSample", [x, grid])
    with pytest.raises(REFUSED, match=message):
        node(np.ones(x_shape, np.float32), np.ones(grid_shape, np.float32))
    assert node(x, grid)[0].tolist() == np.ones((1, 2, 2, 2)).tolist()


@pytest.mark.parametrize("attributes", [{"mode": "lanczos"}, {"padding_mode": "wrap"}])
def test_hostile_attributes(attributes: dict) -> None:
    x, grid = np.ones((1, 2, 3, 4), np.float32), np.ones((1, 5, 6, 2), np.float32)
    with pytest.raises(REFUSED, match="mode"):
        Node("GridSample", [x, grid], **attributes)(x, grid)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 5, 4), (3, 1, 2, 6, 3)])
def test_affine_grid(size, align_corners, dtype) -> None:
    dims = len(size) - 2
    theta = random(np.random.default_rng(4), dtype, size[0], dims, dims + 1)
    how = {"opset": 20, "align_corners": align_corners}
    got = run_npu("AffineGrid", [theta, np.array(size)], **how)[0]
    wide = torch.from_numpy(theta.astype(np.float64))
    expected = torch.nn.functional.affine_grid(wide, list(size), bool(align_corners)).numpy()
    assert got.dtype == theta.dtype and got.shape == expected.shape
    unit = {"float64": 1e-15, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), expected, 0, 16 * 4 * unit)  # sums below 16


def test_affine_grid_of_one_pixel_begins_at_minus_one() -> None:
    theta = np.array([[[1, 0, 0], [0, 1, 0]]], np.float32)
    got = run_npu("AffineGrid", [theta, np.array([1, 1, 1, 1])], opset=20, align_corners=1)[0]
    assert got.tolist() == [[[[-1, -1]]]]
    assert run_npu("AffineGrid", [theta[:0], np.array([0, 1, 3, 2])], opset=20)[0].shape == (
        0,
        3,
        2,
        2,
    )


def test_wrong_arguments_of_affine_grid_are_refused() -> None:
    theta = np.ones((1, 2, 3), np.float32)
    node = Node("AffineGrid", [theta, np.array([1, 1, 2, 2])], opset=20)
    for size in ([2, 1, 2, 2], [1, 1, 2, 2, 2]):
        with pytest.raises(REFUSED, match="theta of shape"):
            node(theta, np.array(size))
    with pytest.raises(REFUSED, match=r"a size \[N, C, H, W\]"):
        node(theta, np.array([1, 1, 2]))
    for length in (-1, 2**40):
        with pytest.raises(REFUSED, match="sizes from 0"):
            node(theta, np.array([1, 1, 2, length]))

"""Suppression of boxes and pooled regions against onnxruntime and NumPy, and hostile arguments."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import FLOATS, Node, assert_close, dtype_of, random, run_cpu, run_npu


def number(value, dtype) -> np.ndarray:
    return np.array([value], dtype)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("most, overlap, least", [(3, 0.5, 0.1), (500, 0.3, None), (10, 0.0, 0.0)])
def test_non_max_suppression(most, overlap, least, centred) -> None:
    rng = np.random.default_rng(1)
    boxes = rng.uniform(0, 1, (2, 120, 4)).astype(np.float32)  # opposite corners in any order
    scores = rng.uniform(-0.5, 1, (2, 3, 120)).astype(np.float32)
    scores[:, :, :20] = 0.75  # equal ones are taken in their order
    inputs = [boxes, scores, number(most, np.int64), number(overlap, np.float32)]
    inputs.append(None if least is None else number(least, np.float32))
    got = run_npu("NonMaxSuppression", inputs, center_point_box=centred)[0]
    expected = run_cpu("NonMaxSuppression", inputs, center_point_box=centred)[0]
    assert len(expected) > 6
    np.testing.assert_array_equal(got, expected)


def test_non_max_suppression_of_nothing() -> None:
    boxes, scores = np.zeros((1, 0, 4), np.float32), np.zeros((1, 2, 0), np.float32)
    assert run_npu("NonMaxSuppression", [boxes, scores, number(5, np.int64)])[0].shape == (0, 3)
    boxes, scores = np.ones((1, 6, 4), np.float32), np.ones((1, 2, 6), np.float32)
    assert run_npu("NonMaxSuppression", [boxes, scores])[0].shape == (0, 3)  # at most 0 by default
    for most in (-5, 0):
        assert run_npu("NonMaxSuppression", [boxes, scores, number(most, np.int64)])[0].size == 0


def test_boxes_without_area_and_nan_suppress_nothing() -> None:
    boxes = np.array([[[0, 0, 0, 0], [0, 0, 0, 0], [np.nan, 0, 1, 1], [0, 0, 1, 1]]], np.float32)
    scores = np.array([[[0.9, 0.8, 0.7, np.nan]]], np.float32)
    got = run_npu("NonMaxSuppression", [boxes, scores, number(2**62, np.int64)])[0]
    assert got.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3]]


def test_wrong_arguments_of_non_max_suppression_are_refused() -> None:
    boxes, scores = np.ones((1, 6, 4), np.float32), np.ones((1, 2, 6), np.float32)
    most, overlap = number(3, np.int64), number(0.5, np.float32)
    node = Node("NonMaxSuppression", [boxes, scores, most, overlap])
    for wrong in (np.ones((1, 6, 5), np.float32), np.ones((2, 6, 4), np.float32)):
        with pytest.raises(Exception, match=r"boxes \[N, boxes, 4\]"):
            node(wrong, scores, most, overlap)
    for bad in (-0.1, 1.5, np.nan):
        with pytest.raises(Exception, match="iou_threshold from 0 to 1"):
            node(boxes, scores, most, number(bad, np.float32))
    assert len(node(boxes, scores, most, overlap)[0]) == 6


def regions(rng: np.random.Generator, count: int) -> np.ndarray:
    """Corners inside, across and outside of a plane of 12 x 14 pixels at a scale of 0.5."""
    corners = rng.uniform(-8, 40, (count, 2, 2)).astype(np.float32)
    return np.sort(corners, axis=1).reshape(count, 4)


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("corners", ["half_pixel", "output_half_pixel", None])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_roi_align(dtype, corners, mode, ratio) -> None:
    rng = np.random.default_rng(2)
    x = random(rng, dtype, 3, 4, 12, 14)
    inputs = [x, regions(rng, 9).astype(dtype), rng.integers(0, 3, 9)]
    how = {"mode": mode, "sampling_ratio": ratio, "spatial_scale": 0.5}
    how |= {"output_height": 3, "output_width": 2}
    if corners:
        how["coordinate_transformation_mode"] = corners
    opset = 16 if corners else 10
    expected = run_cpu("RoiAlign", inputs, opset=opset, **how)[0]
    assert np.abs(expected).max() > 0.1
    # Positions near pixels are rounded to X's type there.
    near = {"float32": 1e-4, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(
        run_npu("RoiAlign", inputs, opset=opset, **how)[0], expected, 0, near
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_roi_align_of_16_bits_is_that_of_float32_rounded_once(dtype) -> None:
    rng = np.random.default_rng(3)
    x, rois = random(rng, dtype, 2, 3, 9, 9), regions(rng, 5).astype(dtype_of(dtype))
    images, how = rng.integers(0, 2, 5), {"output_height": 2, "output_width": 2}
    wide = run_npu("RoiAlign", [x.astype(np.float32), rois.astype(np.float32), images], **how)[0]
    assert_close(run_npu("RoiAlign", [x, rois, images], opset=22, **how)[0], wide, dtype)


def test_wrong_arguments_of_roi_align_are_refused() -> None:
    x, rois = np.ones((2, 1, 4, 4), np.float32), np.ones((3, 4), np.float32)
    images = np.zeros(3, np.int64)
    node = Node("RoiAlign", [x, rois, images])
    for wrong in (np.ones((3, 5), np.float32), np.ones(4, np.float32)):
        with pytest.raises(Exception, match=r"rois \[regions, 4\]"):
            node(x, wrong, images)
    for image in (2, -1, 2**62):
        with pytest.raises(Exception, match="images from 0 to 1"):
            node(x, rois, np.array([0, image, 0]))
    for bad in (1e9, np.inf, np.nan):
        with pytest.raises(Exception, match="samples a bin"):
            node(x, np.array([[0, 0, bad, bad]] * 3, np.float32), images)
    assert node(x[:, :, :0], rois, images)[0].tolist() == [[[[0]]]] * 3  # nothing to sample
    assert node(x, rois[:0], images[:0])[0].shape == (0, 1, 1, 1)
    for name, value in [("output_height", 0), ("output_width", 2**40), ("sampling_ratio", -1)]:
        with pytest.raises(Exception, match=f"{name} from"):
            Node("RoiAlign", [x, rois, images], **{name: value})


def max_roi_pool(x: np.ndarray, rois: np.ndarray, pooled: tuple[int, int], scale: float):
    """The greatest pixels of bins with whole corners, by the definition."""
    out = np.zeros((len(rois), x.shape[1], *pooled), x.dtype)
    for r, (image, *corners) in enumerate(rois.astype(np.float64)):
        x1, y1, x2, y2 = (int(np.floor(abs(c * scale) + 0.5) * np.sign(c)) for c in corners)
        sides = []
        for first, last, bins, size in ((y1, y2, pooled[0], 2), (x1, x2, pooled[1], 3)):
            length = max(last - first + 1, 1)
            cuts = [
                (first + i * length // bins, first - (-(i + 1) * length // bins))
                for i in range(bins)
            ]
            sides.append([np.clip(cut, 0, x.shape[size]) for cut in cuts])
        for i, (top, bottom) in enumerate(sides[0]):
            for j, (left, right) in enumerate(sides[1]):
                if top < bottom and left < right:
                    out[r, :, i, j] = x[int(image), :, top:bottom, left:right].max((1, 2))
    return out


@pytest.mark.parametrize("dtype", FLOATS)
def test_max_roi_pool(dtype) -> None:
    rng = np.random.default_rng(4)
    x = random(rng, dtype, 2, 3, 12, 14)
    rois = np.concatenate([rng.integers(0, 2, (9, 1)), regions(rng, 9)], 1).astype(x.dtype)
    got = run_npu("MaxRoiPool", [x, rois], opset=22, pooled_shape=[3, 4], spatial_scale=0.5)[0]
    np.testing.assert_array_equal(got, max_roi_pool(x, rois, (3, 4), 0.5))


def test_hostile_regions_of_max_roi_pool() -> None:
    x = np.ones((1, 2, 4, 4), np.float32)
    node = Node("MaxRoiPool", [x, np.zeros((1, 5), np.float32)], pooled_shape=[2, 2])
    for bad in (np.inf, -np.inf, np.nan, 3e38):
        assert set(node(x, np.array([[0, bad, bad, 1, 1]], np.float32))[0].ravel()) <= {0, 1}
    for image in (1, -1, np.nan, 1e30):
        with pytest.raises(Exception, match="images from 0 to 0"):
            node(x, np.array([[image, 0, 0, 1, 1]], np.float32))
    assert (node(x[:, :, :0], np.zeros((1, 5), np.float32))[0] == 0).all()
    with pytest.raises(Exception, match=r"rois \[regions, 5\]"):
        node(x, np.zeros((1, 4), np.float32))
    for shape in ([2], [0, 1], [2**40, 1]):
        with pytest.raises(Exception, match="pooled_shape"):
            Node("MaxRoiPool", [x, np.zeros((1, 5), np.float32)], pooled_shape=shape)

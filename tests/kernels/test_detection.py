"""NonMaxSuppression against onnxruntime's own provider, on random boxes, and hostile arguments."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import Node, run_cpu, run_npu


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

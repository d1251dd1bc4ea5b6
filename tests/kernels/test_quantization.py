"""Quantisation by the standard operators, against NumPy and onnxruntime's own provider."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import run_cpu, run_npu


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

"""Group, instance, batch and local response normalisation of all floats, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import (
    FLOATS,
    RTOL,
    Node,
    assert_close,
    dtype_of,
    make_model,
    make_session,
    npu_nodes,
    random,
    run_npu,
)
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

EPSILON = float(np.float32(1e-3))  # an attribute is a float32


def normalized(x: np.ndarray, groups: int) -> np.ndarray:
    grouped = x.astype(np.float64).reshape(len(x), groups, -1)
    centred = grouped - grouped.mean(-1, keepdims=True)
    return (centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)).reshape(x.shape)


def per_channel(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    return values.astype(np.float64).reshape(-1, *[1] * (x.ndim - 2))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("shape, groups", [((2, 6), 3), ((3, 4, 300), 2), ((1, 6, 5, 7), 6)])
def test_groups(shape: tuple, groups: int, opset: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = random(rng, dtype, *shape)
    count = groups if opset == 18 else shape[1]
    scale, bias = random(rng, dtype, count), random(rng, dtype, count)
    (y,) = run_npu(
        "GroupNormalization",
        [x, scale, bias],
        opset=opset,
        num_groups=groups,
        epsilon=EPSILON,
    )
    each = shape[1] // count
    by, plus = (per_channel(np.repeat(v, each), x) for v in (scale, bias))
    expected = normalized(x, groups) * by + plus
    assert y.dtype == dtype_of(dtype)
    if dtype == "float64":
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    else:  # the sum of two terms may cancel: half an ulp of the max
        tolerance = {"float32": 1e-5, "float16": 8e-3, "bfloat16": 6e-2}[dtype]
        np.testing.assert_allclose(y.astype(np.float64), expected, rtol=0, atol=tolerance)


def test_large_offset_does_not_cancel() -> None:
    x = random(np.random.default_rng(1), "float32", 1, 2, 4096) + np.float32(4096)
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    (y,) = run_npu("GroupNormalization", [x, one, zero], num_groups=2, epsilon=EPSILON)
    # The mean is a float32 near 4096, where half a unit in the last place is 2.4e-4.
    np.testing.assert_allclose(y, normalized(x, 2), rtol=0, atol=1e-3)


def test_empty_batch() -> None:
    one = np.ones(4, np.float32)
    (y,) = run_npu("GroupNormalization", [np.zeros((0, 4, 3), np.float32), one, one], num_groups=2)
    assert_close(y, np.zeros((0, 4, 3), np.float32), "float32")


@pytest.mark.parametrize("groups", [0, -2, 3, 2**40])
def test_hostile_groups(groups: int) -> None:
    x, one = np.ones((2, 4, 3), np.float32), np.ones(4, np.float32)
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match="positive divisor"):
        Node("GroupNormalization", [x, one, one], num_groups=groups)(x, one, one)


@pytest.mark.parametrize("lengths", [(3, 4), (4, 5), (2, 2)])
def test_hostile_weights(lengths: tuple) -> None:
    x, scale, bias = np.ones((2, 4, 3), np.float32), *[np.ones(n, np.float32) for n in lengths]
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match="of shape"):
        Node("GroupNormalization", [x, scale, bias], num_groups=2)(x, scale, bias)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 4, 5, 60), (2, 2, 3, 4, 5)])
def test_instance_normalization(shape, dtype) -> None:
    rng = np.random.default_rng(1)
    x, scale, bias = random(rng, dtype, *shape), *(random(rng, dtype, shape[1]) for _ in "sb")
    got = run_npu("InstanceNormalization", [x, scale, bias], opset=22, epsilon=EPSILON)[0]
    expected = normalized(x, shape[1]) * per_channel(scale, x) + per_channel(bias, x)
    assert_close(got, expected, dtype, factor=64)  # differences of values that nearly cancel


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 300), (1, 4, 5, 6), (0, 2, 3)])
def test_batch_normalization(shape, dtype) -> None:
    rng = np.random.default_rng(2)
    x, scale, bias, mean = (
        random(rng, dtype, *shape),
        *(random(rng, dtype, shape[1]) for _ in "sbm"),
    )
    variance = random(rng, dtype, shape[1], low=0.1, high=3)
    got = run_npu("BatchNormalization", [x, scale, bias, mean, variance], opset=15, epsilon=EPSILON)
    by = per_channel(scale, x) / np.sqrt(per_channel(variance, x) + EPSILON)
    expected = (x.astype(np.float64) - per_channel(mean, x)) * by + per_channel(bias, x)
    assert got[0].dtype == x.dtype
    terms = np.abs(by).max(initial=0) * 8 + 4  # the products and summands that may cancel
    np.testing.assert_allclose(
        got[0].astype(np.float64), expected, rtol=RTOL[dtype], atol=terms * RTOL[dtype]
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(6, 3), (2, 3, 700), (1, 4, 5, 6)])
def test_batch_normalization_with_statistics_of_the_batch(shape, dtype) -> None:
    rng = np.random.default_rng(3)
    x, *given = (
        random(rng, dtype, *shape),
        *(random(rng, dtype, shape[1], low=0.1, high=3) for _ in "sbmv"),
    )
    got = run_npu(
        "BatchNormalization",
        [x, *given],
        3,
        opset=15,
        epsilon=EPSILON,
        momentum=0.75,
        training_mode=1,
    )
    wide = x.astype(np.float64)
    axes = (0, *range(2, x.ndim))
    scale, bias, mean, variance = (v.astype(np.float64) for v in given)
    now = wide.mean(axes), wide.var(axes)
    by = per_channel(scale / np.sqrt(now[1] + EPSILON), x)
    expected = (wide - per_channel(now[0], x)) * by + per_channel(bias, x)
    terms = np.abs(by).max() * 8 + 4  # the products and summands that may cancel
    np.testing.assert_allclose(
        got[0].astype(np.float64), expected, rtol=RTOL[dtype], atol=terms * RTOL[dtype]
    )
    for running, before, batch in zip(got[1:], (mean, variance), now, strict=True):
        assert running.dtype == x.dtype
        np.testing.assert_allclose(
            running.astype(np.float64), 0.75 * before + 0.25 * batch, rtol=2 * RTOL[dtype]
        )


def test_statistics_of_no_elements_are_refused() -> None:
    one = np.ones(3, np.float32)
    empty = np.ones((0, 3, 2), np.float32)
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match="expected elements"):
        run_npu("BatchNormalization", [empty, *[one] * 4], 3, opset=15, training_mode=1)


@pytest.mark.parametrize("spatial", [0, 1])
def test_batch_normalization_of_opset_7(spatial: int) -> None:
    x, one = np.full((2, 3, 1), 3, np.float32), np.ones((3, 1)[: 2 - spatial], np.float32)
    model = make_model("BatchNormalization", [x, *[one] * 4], opset=7, spatial=spatial)
    assert npu_nodes(make_session(model)) == ["BatchNormalization"] * spatial


def test_batch_normalization_takes_parameters_of_another_type_and_checks_their_shapes() -> None:
    x = np.full((1, 2, 2), 3, np.float16)
    one, two = np.ones(2, np.float32), np.full(2, 2, np.float32)
    node = Node("BatchNormalization", [x, one, one, one, one], opset=15, epsilon=0.0)
    assert node(x, two, one, one, one)[0].tolist() == [[[5, 5], [5, 5]]]
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match=r"expected var of shape"):
        node(x, two, one, one, np.ones(3, np.float32))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 40])
def test_local_response_normalization(size, dtype) -> None:
    x = random(np.random.default_rng(3), dtype, 2, 7, 3, 150)
    options = {"alpha": 0.5, "beta": 0.75, "bias": 1.5}
    got = run_npu("LRN", [x], size=size, opset=13, **options)[0]
    squares = x.astype(np.float64) ** 2
    sums = np.zeros_like(squares)
    for c in range(7):
        sums[:, c] = squares[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1].sum(1)
    expected = x.astype(np.float64) / (1.5 + 0.5 / size * sums) ** 0.75
    assert_close(got, expected, dtype, factor=16)
    with pytest.raises((Fail, InvalidArgument, RuntimeException), match=r"expected a size of 1"):
        run_npu("LRN", [x], size=0, opset=13)

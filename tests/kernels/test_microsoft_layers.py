"""Norms, activations and matmuls of com.microsoft against onnxruntime's CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import FLOATS, Node, assert_close, random, run_cpu, run_npu

MICROSOFT = "com.microsoft"
# One rounding of sums of a few hundred terms of up to 1.
NEAR = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 4e-2}


def both(op, inputs, outputs=1, **options):
    """The outputs on the NPU and, computed in float32, on the CPU."""
    got = run_npu(op, inputs, outputs, domain=MICROSOFT, **options)
    wide = [
        a.astype(np.float32) if a is not None and a.dtype.name in ("float16", "bfloat16") else a
        for a in inputs
    ]
    return zip(got, run_cpu(op, wide, outputs, domain=MICROSOFT, **options), strict=True)


def close(got, expected, dtype) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=NEAR[dtype], atol=NEAR[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skip_norms(op, dtype) -> None:
    rng = np.random.default_rng(1)
    for shape in [(2, 3, 40), (5, 64), (1, 1, 700), (0, 3, 8), (2, 3, 1)]:
        n = shape[-1]
        x, skip = random(rng, dtype, *shape), random(rng, dtype, *shape)
        gamma, beta, bias = (random(rng, dtype, n, low=-1, high=1) for _ in range(3))
        middle = [beta] if op == "SkipLayerNormalization" else []
        for inputs in ([x, skip, gamma, *middle, bias], [x, skip, gamma]):
            outputs = ["y", "", "", "sum"]
            for got, expected in both(op, inputs, outputs, epsilon=1e-5):
                assert got.dtype == x.dtype
                close(got, expected, dtype)


def test_statistics_and_skips_of_one_batch_entry() -> None:
    rng = np.random.default_rng(2)
    x, gamma = random(rng, "float32", 3, 4, 16), random(rng, "float32", 16)
    for skip_shape in [(1, 4, 16), (4, 16)]:
        skip = random(rng, "float32", *skip_shape)
        given = [x, skip, gamma]
        y, mean, inverse = run_npu(
            "SkipLayerNormalization", given, 3, domain=MICROSOFT, epsilon=1e-5
        )
        total = (x + skip).astype(np.float64)
        # A mean near 0 keeps the rounding of the values that add up to it.
        atol = 4 * 2.0**-24 * np.abs(total).max()
        np.testing.assert_allclose(mean, total.mean(-1, keepdims=True), rtol=0, atol=atol)
        deviation = np.sqrt(total.var(-1, keepdims=True) + 1e-5)
        assert_close(inverse, 1 / deviation, "float32", factor=4)
        expected = (total - total.mean(-1, keepdims=True)) / deviation * gamma
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", FLOATS)
def test_simplified_layer_normalization(dtype) -> None:
    rng = np.random.default_rng(3)
    x, scale = random(rng, dtype, 2, 3, 50), random(rng, dtype, 50)
    y, inverse = run_npu("SimplifiedLayerNormalization", [x, scale], 2, opset=21, epsilon=1e-6)
    wide = x.astype(np.float64)
    factor = 1 / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    assert_close(y, wide * factor * scale.astype(np.float64), dtype, factor=4)
    assert_close(inverse, factor, "float32", factor=4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("opset", [9, 16])
@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_before_it_was_an_operator_of_onnx(axis, opset, dtype) -> None:
    """Onnxruntime's optimizers write it for every operator set."""
    rng = np.random.default_rng(3)
    x, scale, bias = (random(rng, dtype, *shape) for shape in [(2, 3, 50), (50,), (50,)])
    node = "LayerNormalization", [x, scale, bias]
    options = {"axis": axis, "epsilon": 1e-6, "opset": opset}
    expected = run_cpu(*node, **options)[0]
    # Terms of up to 8 cancel against the bias.
    atol = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(run_npu(*node, **options)[0], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gelus(dtype) -> None:
    rng = np.random.default_rng(4)
    x, bias = random(rng, dtype, 3, 5, 300, low=-6, high=6), random(rng, dtype, 300)
    cases = [
        ("Gelu", [x], {}),
        ("QuickGelu", [x], {}),
        ("QuickGelu", [x], {"alpha": 1.0}),
        ("BiasGelu", [x, bias], {}),
        ("FastGelu", [x], {}),
        ("FastGelu", [x, bias], {}),
    ]
    for op, inputs, attributes in cases:
        for got, expected in both(op, inputs, **attributes):
            assert got.dtype == x.dtype
            close(got, expected, dtype)


@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_fused_matmul(dtype, constant) -> None:
    rng = np.random.default_rng(5)
    for a_shape, b_shape, options in [
        ((3, 4), (4, 5), {"alpha": 0.5}),
        ((4, 3), (4, 5), {"transA": 1}),
        ((2, 3, 4), (5, 4), {"transB": 1, "alpha": 0.125}),
        ((2, 4, 3), (2, 5, 4), {"transA": 1, "transB": 1}),
        ((2, 1, 70, 130), (3, 130, 33), {}),
        ((4,), (4, 5), {"transA": 1}),
        ((0, 4), (4, 5), {}),
    ]:
        a = random(rng, dtype, *a_shape, low=-1, high=1)
        b = random(rng, dtype, *b_shape, low=-1, high=1)
        got = run_npu("FusedMatMul", [a, b], domain=MICROSOFT, constant=constant, **options)[0]
        left = a.swapaxes(-1, -2) if options.get("transA") and a.ndim > 1 else a
        right = b.swapaxes(-1, -2) if options.get("transB") else b
        expected = options.get("alpha", 1) * (left.astype(np.float64) @ right.astype(np.float64))
        assert got.dtype == a.dtype
        close(got, expected, dtype)


def four_roundings(expected) -> float:
    """Sums of integers are exact: what remains are two scales, their product and the bias."""
    return 4 * 2.0**-24 * np.abs(expected).max()


@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("b_type", [np.int8, np.uint8])
def test_integers_to_float(b_type, constant) -> None:
    rng = np.random.default_rng(6)
    for rows, depth, columns in [(3, 16, 5), (70, 130, 33), (1, 7, 1)]:
        low, high = np.iinfo(b_type).min, np.iinfo(b_type).max
        b = rng.integers(low, high, (depth, columns)).astype(b_type)
        zero = rng.integers(low, high, columns).astype(b_type)
        scale = rng.uniform(0.01, 0.02, columns).astype(np.float32)
        bias = random(rng, "float32", columns)
        exact = b.astype(np.float64) - zero
        a = rng.integers(0, 255, (rows, depth)).astype(np.uint8)
        given = [a, b, np.float32(0.05), scale, np.uint8(120), zero, bias]
        given = [np.asarray(v) for v in given]
        got = run_npu("MatMulIntegerToFloat", given, domain=MICROSOFT, constant=constant)[0]
        expected = (a.astype(np.float64) - 120) @ exact * 0.05 * scale + bias
        np.testing.assert_allclose(got, expected, rtol=0, atol=four_roundings(expected))
        x = random(rng, "float32", rows, depth)
        given = [x, b, scale, zero, bias]
        got = run_npu("DynamicQuantizeMatMul", given, domain=MICROSOFT, constant=constant)[0]
        step = np.float32((max(x.max(), 0) - min(x.min(), 0)) / 255)
        point = np.clip(np.rint(-min(x.min(), 0) / step), 0, 255)
        rounded = np.clip(np.rint(x / step) + point, 0, 255)
        expected = (rounded.astype(np.float64) - point) @ exact * step * scale + bias
        np.testing.assert_allclose(got, expected, rtol=0, atol=four_roundings(expected))


WRONG = [
    ("SkipLayerNormalization", [(2, 8), (2, 7), (8,)], {}, "expected skip of the input"),
    ("SkipLayerNormalization", [(2, 8), (2, 8), (7,)], {}, "expected gamma of float32"),
    ("SkipLayerNormalization", [(2, 8), (2, 8), (8,), (3,)], {}, "expected beta of float32"),
    ("SkipSimplifiedLayerNormalization", [(8,), (8,), (8,)], {}, r"\[tokens, hidden\]"),
    ("SkipSimplifiedLayerNormalization", [(2, 0), (2, 0), (0,)], {}, "elements to normalise"),
    ("FusedMatMul", [(2, 3), (4, 5)], {}, "FusedMatMul"),
    ("FusedMatMul", [(2, 3), (3, 5)], {"transA": 1}, "FusedMatMul"),
]


@pytest.mark.parametrize("op, shapes, attributes, message", WRONG, ids=str)
def test_wrong_arguments_are_refused(op, shapes, attributes, message) -> None:
    arrays = [np.ones(shape, np.float32) for shape in shapes]
    with pytest.raises(Exception, match=message):
        Node(op, arrays, domain=MICROSOFT, **attributes)(*arrays)

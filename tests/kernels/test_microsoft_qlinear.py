"""Operators of com.microsoft on 8-bit integers, against float64 and onnxruntime's CPU provider."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx_nodes import (
    CPU,
    NPU,
    Node,
    feeds_of,
    make_model,
    make_session,
    npu_nodes,
    random,
    run_cpu,
    run_npu,
    run_session,
)

MICROSOFT = "com.microsoft"
KINDS = [np.uint8, np.int8]


class Quantized:
    """Random integers with a scale and a zero point."""

    def __init__(self, rng, kind, *shape: int, bits: int = 8) -> None:
        low, high = np.iinfo(kind).min >> 8 - bits, np.iinfo(kind).max >> 8 - bits
        self.integers = rng.integers(low, high + 1, shape).astype(kind)
        self.scale = np.float32(rng.uniform(0.01, 0.1))
        self.zero = np.array(rng.integers(low, high + 1), kind)

    @property
    def inputs(self) -> list[np.ndarray]:
        return [self.integers, *scaled(self.scale, self.zero)]

    @property
    def values(self) -> np.ndarray:
        return (self.integers.astype(np.float64) - float(self.zero)) * float(self.scale)


def weight(rng, kind, *shape: int) -> Quantized:
    """Of 7 bits if signed, where the results are compared with those of the CPU provider.

    Without instructions of AVX-VNNI it adds pairs of products of uint8 and int8 in int16, which
    saturates.
    """
    return Quantized(rng, kind, *shape, bits=7 if kind is np.int8 else 8)


def scaled(scale, zero) -> list[np.ndarray]:
    return [np.array(scale, np.float32), np.asarray(zero)]


def check(op, inputs, exact, scale, zero, cpu=True, outputs=1, **options):
    """Compares with the exact result.

    The integer is the nearest to it, but for the error of a few float32 operations; the CPU
    provider, which rounds elsewhere, is at most one away.
    """
    options = {"domain": MICROSOFT} | options
    got = run_npu(op, inputs, outputs, **options)[0]
    bounds = np.iinfo(got.dtype)
    assert got.dtype == zero.dtype
    assert got.shape == exact.shape
    steps = np.clip(exact / float(scale) + float(zero), bounds.min, bounds.max)
    np.testing.assert_allclose(got.astype(np.float64), steps, rtol=0, atol=0.501)
    if cpu:
        expected = run_cpu(op, inputs, outputs, **options)[0]
        np.testing.assert_allclose(got.astype(np.int32), expected.astype(np.int32), rtol=0, atol=1)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("floats", ["float32", "float16"])
@pytest.mark.parametrize(("of_scales", "attributes"), [((), {}), ((1,), {}), ((6,), {"axis": 1})])
def test_linear_quantisation(of_scales, attributes, floats, kind) -> None:
    """What onnxruntime's quantizer writes for 16-bit integers before opset 21."""
    rng = np.random.default_rng(5)
    x = random(rng, floats, 3, 6, 50, low=-30, high=30)
    scale = np.asarray(random(rng, floats, *of_scales, low=0.05, high=0.2), floats)
    limits = np.iinfo(kind)
    point = np.asarray(rng.integers(limits.min, limits.max, of_scales), kind)
    options = {"domain": MICROSOFT, "opset": 17} | attributes
    got = run_npu("QuantizeLinear", [x, scale, point], **options)[0]
    expected = run_cpu("QuantizeLinear", [x, scale, point], **options)[0]
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    back = run_npu("DequantizeLinear", [expected, scale, point], **options)[0]
    wanted = run_cpu("DequantizeLinear", [expected, scale, point], **options)[0]
    assert back.dtype == wanted.dtype
    np.testing.assert_array_equal(back, wanted)


SHAPES = [
    ((3, 5), (3, 5)),
    ((2, 300), (1,)),
    ((), (4, 7)),
    ((2, 3, 4), (3, 1)),
    ((0, 3), (3,)),
    ((5, 700), (700,)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_binary(op, kind, shapes) -> None:
    rng = np.random.default_rng(1)
    a, b = (Quantized(rng, kind, *shape) for shape in shapes)
    exact = a.values + b.values if op == "QLinearAdd" else a.values * b.values
    scale = np.float32(0.07 if op == "QLinearAdd" else 0.3)
    zero = np.array(17, kind)
    inputs = [*a.inputs, *b.inputs, *scaled(scale, zero)]
    check(op, inputs, exact, scale, zero, cpu=exact.size > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_unary(kind) -> None:
    rng = np.random.default_rng(2)
    x = Quantized(rng, kind, 3, 400)
    zero = np.array(3, kind)
    for op, exact, scale, options in [
        ("QLinearSigmoid", 1 / (1 + np.exp(-x.values)), 1 / 256, {}),
        ("QLinearLeakyRelu", np.where(x.values < 0, 0.01, 1) * x.values, 0.04, {}),
        ("QLinearLeakyRelu", np.where(x.values < 0, -2.0, 1) * x.values, 0.09, {"alpha": -2.0}),
    ]:
        scale = np.float32(scale)
        check(op, [*x.inputs, *scaled(scale, zero)], exact, scale, zero, **options)


def test_absent_zero_points_are_zero() -> None:
    rng = np.random.default_rng(3)
    x = Quantized(rng, np.int8, 50)
    x.zero = np.array(0, np.int8)
    scale = np.array(0.01, np.float32)
    inputs = [x.integers, np.array(x.scale), None, scale]
    # onnxruntime's own kernel aborts, and its QLinearAdd demands zero points.
    check("QLinearSigmoid", inputs, 1 / (1 + np.exp(-x.values)), scale, x.zero, cpu=False)


@pytest.mark.parametrize("kind", KINDS)
def test_where(kind) -> None:
    rng = np.random.default_rng(4)
    for c_shape, x_shape, y_shape in [
        ((3, 4), (3, 4), (1,)),
        ((4,), (3, 1), (3, 4)),
        ((), (2,), (2,)),
    ]:
        condition = rng.random(c_shape) < 0.5
        x, y = Quantized(rng, kind, *x_shape), Quantized(rng, kind, *y_shape)
        zero = np.array(9, kind)
        exact = np.where(condition, x.values, y.values)
        inputs = [np.asarray(condition), *x.inputs, *y.inputs, *scaled(0.06, zero)]
        check("QLinearWhere", inputs, exact, 0.06, zero)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", KINDS)
def test_concat(kind, axis) -> None:
    rng = np.random.default_rng(5)
    parts = []
    for width in (1, 4, 0, 2):
        shape = [3, 5, 2]
        shape[axis] = width
        parts.append(Quantized(rng, kind, *shape))
    zero = np.array(-20 if kind is np.int8 else 100, kind)
    exact = np.concatenate([p.values for p in parts], axis)
    inputs = [*scaled(0.05, zero), *(v for p in parts for v in p.inputs)]
    check("QLinearConcat", inputs, exact, 0.05, zero, axis=axis)


@pytest.mark.parametrize("kind", KINDS)
def test_pools(kind) -> None:
    rng = np.random.default_rng(6)
    x = Quantized(rng, kind, 2, 3, 7, 6)
    zero = np.array(40, kind)
    inputs = [*x.inputs, *scaled(0.05, zero)]
    mean = x.values.mean((2, 3), keepdims=True)
    check("QLinearGlobalAveragePool", inputs, mean, 0.05, zero)
    windows = np.lib.stride_tricks.sliding_window_view(x.values, (3, 2), (2, 3))[:, :, ::2, ::2]
    options = {"kernel_shape": [3, 2], "strides": [2, 2]}
    check("QLinearAveragePool", inputs, windows.mean((4, 5)), 0.05, zero, **options)
    padded = np.pad(x.values, ((0, 0), (0, 0), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), (2, 3))
    options = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "count_include_pad": 1}
    check("QLinearAveragePool", inputs, windows.mean((4, 5)), 0.05, zero, **options)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_reduce_mean(kind, keepdims) -> None:
    """onnxruntime has no kernel of it."""
    rng = np.random.default_rng(7)
    x = Quantized(rng, kind, 4, 5, 6)
    zero = np.array(2, kind)
    exact = x.values.mean((0, 2), keepdims=bool(keepdims))
    inputs = [*x.inputs, *scaled(0.03, zero)]
    check(
        "QLinearReduceMean", inputs, exact, 0.03, zero, cpu=False, axes=[0, -1], keepdims=keepdims
    )


@pytest.mark.parametrize("opset, axis", [(12, 1), (12, 2), (13, 1), (13, -1)])
@pytest.mark.parametrize("kind", KINDS)
def test_softmax(kind, opset, axis) -> None:
    rng = np.random.default_rng(8)
    x = Quantized(rng, kind, 3, 4, 20)
    x.scale = np.float32(0.05)
    axes = tuple(range(axis, 3)) if opset < 13 else axis
    powers = np.exp(x.values - x.values.max(axes, keepdims=True))
    exact = powers / powers.sum(axes, keepdims=True)
    zero = np.array(np.iinfo(kind).min, kind)
    inputs = [*x.inputs, *scaled(1 / 256, zero)]
    model = make_model("QLinearSoftmax", inputs, domain=MICROSOFT, axis=axis)
    # Not an argument of make_model, whose own it is.
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("opset", opset))
    assert npu_nodes(make_session(model)) == ["QLinearSoftmax"]
    feeds = feeds_of(inputs, ())
    got, expected = (
        run_session(make_session(model, provider), feeds)[0].astype(np.float64)
        for provider in (NPU, CPU)
    )
    # The integer nearest to the exact result but for the error of a few float32 operations.
    steps = np.minimum(exact * 256, 255) + float(zero)
    np.testing.assert_allclose(got, steps, rtol=0, atol=0.501)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1)


@pytest.mark.parametrize("constant", [(), (3,)])
@pytest.mark.parametrize(
    "a_kind, b_kind", [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)]
)
def test_gemm(a_kind, b_kind, constant) -> None:
    rng = np.random.default_rng(9)
    for rows, depth, columns, per_column in [
        (3, 16, 5, False),
        (40, 130, 33, True),
        (1, 7, 1, True),
    ]:
        a, b = Quantized(rng, a_kind, rows, depth), weight(rng, b_kind, depth, columns)
        scales = np.atleast_1d(rng.uniform(0.01, 0.02, columns if per_column else 1)).astype(
            np.float32
        )
        zeros = rng.integers(0, 100, columns if per_column else 1).astype(b_kind)
        c = rng.integers(-5000, 5000, columns).astype(np.int32)
        sums = (a.integers.astype(np.float64) - float(a.zero)) @ (
            b.integers.astype(np.float64) - zeros
        )
        exact = (sums + c) * 0.5 * float(a.scale) * scales
        turned = [
            np.ascontiguousarray(a.integers.T), *a.inputs[1:],
            np.ascontiguousarray(b.integers.T), scales, zeros, c,
        ]  # fmt: skip
        straight = [*a.inputs, b.integers, scales, zeros, c]
        options = {"domain": MICROSOFT, "constant": constant, "alpha": 0.5}
        for inputs, turns in [(straight, {}), (turned, {"transA": 1, "transB": 1})]:
            got = run_npu("QGemm", inputs, **options, **turns)[0]
            np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-4)
            zero = np.array(20, a_kind)
            quantized = [*inputs, *scaled(0.7, zero)]
            check("QGemm", quantized, exact, 0.7, zero, **options, **turns)
        without = [*straight[:-1], None]
        expected = run_cpu("QGemm", without, **options)[0]
        np.testing.assert_allclose(run_npu("QGemm", without, **options)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("constant", [(), (1,)])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("weight_kind", KINDS)
def test_attention(weight_kind, past, constant) -> None:
    rng = np.random.default_rng(10)
    batch, rows, heads, size = 2, 5, 3, 8
    columns = 3 * heads * size
    x, w = Quantized(rng, np.uint8, batch, rows, 20), weight(rng, weight_kind, 20, columns)
    x.scale = w.scale = np.float32(0.01)
    per_column = weight_kind is np.int8
    scales = rng.uniform(0.005, 0.01, columns if per_column else 1).astype(np.float32)
    cache = random(rng, "float32", 2, batch, heads, 4, size) if past else None
    mask = rng.integers(0, 2, (batch, rows + 4 * past)).astype(np.int32)
    inputs = [
        x.integers, w.integers, random(rng, "float32", columns), np.array(x.scale), scales, mask,
        x.zero, w.zero, cache,
    ]  # fmt: skip
    options = {
        "domain": MICROSOFT,
        "num_heads": heads,
        "unidirectional": 1,
        "mask_filter_value": -16.0,
    }
    outputs = 2 if past else 1
    got = run_npu("QAttention", inputs, outputs, constant=constant, **options)
    expected = run_cpu("QAttention", inputs, outputs, **options)
    for value, wanted in zip(got, expected, strict=True):
        # Sums of a few products of values of up to 5 in float32.
        np.testing.assert_allclose(value, wanted, rtol=0, atol=2e-5)


BYTES, SCALE, ZERO = np.ones((2, 3), np.uint8), np.array(0.1, np.float32), np.array(1, np.uint8)
SCALES, ZEROS = np.ones(2, np.float32), np.ones(2, np.uint8)
GOOD, PAIR, TURNED = [BYTES, SCALE, ZERO], [SCALE, ZERO], {"transB": 1}
WRONG = [
    ("QLinearAdd", [BYTES, SCALES, ZERO, *GOOD, *PAIR], {}, "one scale of A"),
    ("QLinearAdd", [BYTES, SCALE, ZEROS, *GOOD, *PAIR], {}, "one zero point of A"),
    ("QLinearMul", [*GOOD, ZEROS, *PAIR, *PAIR], {}, "broadcast"),
    ("QLinearSigmoid", [*GOOD, SCALES, ZERO], {}, "one scale of Y"),
    ("QLinearConcat", [*PAIR, BYTES, SCALE], {"axis": 0}, "for each input"),
    ("QLinearConcat", [*PAIR, *GOOD], {"axis": 2}, "axis"),
    ("QLinearConcat", [*PAIR, *GOOD, BYTES[:, :2], *PAIR], {"axis": 0}, "differ along axis"),
    ("QLinearConcat", [*PAIR, SCALE, SCALE, SCALE], {"axis": 0}, "expected an axis|zero point"),
    ("QLinearAveragePool", [*GOOD, *PAIR], {"kernel_shape": [2]}, "AveragePool] expected"),
    ("QLinearReduceMean", [*GOOD, *PAIR], {"axes": [5], "keepdims": 1}, "ReduceMean] expected"),
    ("QGemm", [*GOOD, *GOOD], {}, "as many columns of A"),
    ("QGemm", [BYTES, SCALES, ZERO, *GOOD], TURNED, "one a_scale"),
    ("QGemm", [*GOOD, BYTES, np.ones(3, np.float32), ZERO], TURNED, "one b_scale"),
    ("QGemm", [BYTES, SCALE, ZEROS, *GOOD], TURNED, "a_zero_point"),
    ("QGemm", [*GOOD, *GOOD, np.ones(3, np.int32)], TURNED, "expected C"),
]


@pytest.mark.parametrize("op, inputs, options, message", WRONG, ids=lambda v: str(v)[:20])
def test_wrong_operands(op, inputs, options, message) -> None:
    with pytest.raises(Exception, match=message):
        Node(op, inputs, domain=MICROSOFT, **options)(*inputs)


def test_hostile_scales_give_integers() -> None:
    """Scales of 0, infinities and NaN: any integers, and no fault."""
    for scale in (0.0, np.inf, np.nan, -1.0):
        odd = np.array(scale, np.float32)
        for op in ("QLinearSigmoid", "QLinearLeakyRelu"):
            y = run_npu(op, [BYTES, odd, ZERO, odd, ZERO], domain=MICROSOFT)[0]
            assert y.dtype == np.uint8
            assert y.shape == BYTES.shape


# Of A, B and the result: halves between integers, ordinary ones, and ends of the range of float32.
SCALES = [
    (0.5, 0.25, 1.0), (0.37, 0.11, 0.29), (0.7, 0.35, 0.7), (0.3, 0.1, 0.2),
    (1e-30, 1e-30, 1.3e-30), (1e-38, 1e-38, 1e-40), (3e38, 1.0, 0.5), (1.0, 1.0, 3e38),
    (2e20, 1e20, 7e19), (1.0, 1.0, 1e-12),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scales", SCALES)
def test_sums_are_divided_as_float32_divides(scales, kind) -> None:
    bounds = np.iinfo(kind)
    each = np.arange(bounds.min, bounds.max + 1).astype(kind)
    a, b = (side.ravel() for side in np.meshgrid(each, each))
    a_zero, b_zero, zero = (np.array(v, kind) for v in (3, 5, 7))
    of_a, of_b, scale = (np.float32(s) for s in scales)
    inputs = [a, *scaled(of_a, a_zero), b, *scaled(of_b, b_zero), *scaled(scale, zero)]
    got = run_npu("QLinearAdd", inputs, domain=MICROSOFT)[0]
    with np.errstate(over="ignore", invalid="ignore"):
        sums = (a.astype(np.float32) - np.float32(3)) * of_a
        sums = sums + (b.astype(np.float32) - np.float32(5)) * of_b
        steps = np.rint(sums / scale) + np.float32(7)
    expected = np.clip(np.nan_to_num(steps, nan=0), bounds.min, bounds.max).astype(kind)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_convolution_is_that_of_onnx(kind):
    rng = np.random.default_rng(3)
    x, w = Quantized(rng, kind, 2, 6, 9, 10), weight(rng, np.int8, 8, 3, 3, 3)
    w.zero[...] = 0
    y_scale = scaled(0.7, np.array(7, kind))
    inputs = [*x.inputs, *w.inputs, *y_scale, rng.integers(-500, 500, 8).astype(np.int32)]
    options = {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 1]}
    got = run_npu("QLinearConv", inputs, constant=[3], domain=MICROSOFT, **options)[0]
    np.testing.assert_array_equal(got, run_npu("QLinearConv", inputs, constant=[3], **options)[0])
    expected = run_cpu("QLinearConv", inputs, domain=MICROSOFT, **options)[0]
    np.testing.assert_allclose(got.astype(int), expected.astype(int), rtol=0, atol=1)
    assert np.ptp(expected.astype(int)) > 20


def test_a_convolution_with_channels_last_stays_on_the_cpu():
    rng = np.random.default_rng(4)
    x, w = Quantized(rng, np.uint8, 1, 5, 5, 4), Quantized(rng, np.int8, 8, 4, 1, 1)
    w.zero[...] = 0
    inputs = [*x.inputs, *w.inputs, *scaled(0.5, np.array(9, np.uint8))]
    model = make_model("QLinearConv", inputs, domain=MICROSOFT, channels_last=1, constant=[3])
    assert npu_nodes(make_session(model)) == []

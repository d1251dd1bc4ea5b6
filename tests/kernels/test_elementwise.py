"""Elementwise operators over dtypes, broadcasts and special values."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_nodes import (
    CPU,
    FIXED_WIDTH,
    FLOATS,
    INTS,
    IR_VERSION,
    NPU,
    RTOL,
    SIGNED_INTS,
    Node,
    assert_close,
    dtype_of,
    make_session,
    npu_nodes,
    random,
    run_npu,
)

SHAPES = [
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((2, 3), ()),
    ((), (2, 3)),
    ((), ()),
    ((1,), (1, 1)),
    ((2, 1, 3), (4, 1)),
    ((5, 1), (1, 7)),
    ((3, 1, 2, 1), (1, 4, 1, 5)),
    ((2, 3, 4), (1, 3, 1)),
    ((0, 3), (1, 3)),
    ((4, 0), ()),
    ((2, 1, 3, 1, 2, 1, 2), (2, 2, 1, 2, 1, 1, 1)),
    ((300, 257), (257,)),  # split over threads, in the middle of rows
    ((1, 70001), (1, 1)),
]


def wide(array: np.ndarray) -> np.ndarray:
    """The dtype of the reference: float64 for floats."""
    return array.astype(np.float64) if array.dtype.kind not in "iub" else array


ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
@pytest.mark.parametrize("op", ARITHMETIC)
def test_arithmetic(op: str, dtype: str) -> None:
    rng = np.random.default_rng(1)
    node = Node(op, [random(rng, dtype, 1), random(rng, dtype, 1)])
    for a_shape, b_shape in SHAPES:
        a, b = random(rng, dtype, *a_shape), random(rng, dtype, *b_shape)
        assert_close(node(a, b)[0], ARITHMETIC[op](wide(a), wide(b)), dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_division(dtype: str) -> None:
    rng = np.random.default_rng(2)
    node = Node("Div", [random(rng, dtype, 1), random(rng, dtype, 1)])
    for a_shape, b_shape in SHAPES:
        a = random(rng, dtype, *a_shape, low=-100, high=100)
        b = random(rng, dtype, *b_shape, low=1, high=9)
        quotient = wide(a) / wide(b)
        expected = np.trunc(quotient).astype(a.dtype) if dtype in INTS else quotient
        assert_close(node(a, b)[0], expected, dtype)


def test_float_division_by_zero_is_ieee() -> None:
    one = np.array([1, -1, 0], np.float32)
    np.testing.assert_array_equal(
        run_npu("Div", [one, np.zeros(3, np.float32)])[0], [np.inf, -np.inf, np.nan]
    )


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integer_division_by_zero_fails_the_run(op: str) -> None:
    node = Node(op, [np.zeros(1, np.int32)] * 2)
    with pytest.raises(Exception, match=rf"\[{op}\] expected a non-zero divisor"):
        node(np.arange(5, dtype=np.int32), np.array([1, 2, 0, 3, 4], np.int32))
    assert node(np.array([7], np.int32), np.array([-1], np.int32))[0] == [-7 if op == "Div" else 0]


@pytest.mark.parametrize("dtype", SIGNED_INTS)
def test_min_integer_divided_by_minus_one_wraps(dtype: str) -> None:
    lowest = np.array([np.iinfo(dtype).min], dtype)
    minus_one = np.array([-1], dtype)
    assert run_npu("Div", [lowest, minus_one])[0] == lowest
    assert run_npu("Mod", [lowest, minus_one])[0] == 0
    assert run_npu("Mod", [lowest, minus_one], fmod=1)[0] == 0


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_mod(dtype: str, fmod: int) -> None:
    if dtype in FLOATS and not fmod:
        pytest.skip("ONNX defines Mod of floats with fmod=1 only")
    rng = np.random.default_rng(3)
    node = Node("Mod", [random(rng, dtype, 1), random(rng, dtype, 1)], fmod=fmod)
    for a_shape, b_shape in SHAPES:
        a = random(rng, dtype, *a_shape, low=-100, high=100)
        b = random(rng, dtype, *b_shape, low=1, high=9)
        if dtype in SIGNED_INTS:
            b = np.where(rng.random(b_shape) < 0.5, -b, b).astype(b.dtype)
        assert_close(node(a, b)[0], (np.fmod if fmod else np.mod)(wide(a), wide(b)), dtype)


@pytest.mark.parametrize("exponent", [*FLOATS, "int8", "int64", "uint32"])
@pytest.mark.parametrize("base", [*FLOATS, "int32", "int64"])
def test_pow(base: str, exponent: str) -> None:
    rng = np.random.default_rng(4)
    node = Node("Pow", [random(rng, base, 1), random(rng, exponent, 1)])
    for a_shape, b_shape in SHAPES[:-2]:
        a = random(rng, base, *a_shape, low=0.5, high=5)
        b = random(rng, exponent, *b_shape, low=0, high=4)
        if base in INTS and exponent in FLOATS:
            b = np.round(wide(b)).astype(b.dtype)
        assert_close(node(a, b)[0], np.power(wide(a), wide(b)), base)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, 1.0, -1.0, 0.0, 1.5, -2.0])
def test_pow_of_special_values(exponent: float, dtype: str) -> None:
    base = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -2, 0.25], dtype_of(dtype))
    with np.errstate(all="ignore"):
        expected = np.power(wide(base), np.full(base.shape, exponent))  # no scalar shortcut
    assert_close(run_npu("Pow", [base, np.array(exponent, dtype_of(dtype))])[0], expected, dtype)


COMPARISONS = {
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
}


@pytest.mark.parametrize("dtype", FIXED_WIDTH)
@pytest.mark.parametrize("op", COMPARISONS)
def test_comparison(op: str, dtype: str) -> None:
    if dtype == "bool" and op != "Equal":
        pytest.skip("ONNX does not order bools")
    rng = np.random.default_rng(5)
    node = Node(op, [random(rng, dtype, 1), random(rng, dtype, 1)])
    for a_shape, b_shape in SHAPES:
        a, b = random(rng, dtype, *a_shape), random(rng, dtype, *b_shape)
        if dtype in FLOATS:
            a, b = (np.round(wide(v)).astype(v.dtype) for v in (a, b))  # so that some are equal
            if a.ndim:
                a[..., :1] = np.nan
        assert_close(node(a, b)[0], COMPARISONS[op](wide(a), wide(b)), "bool")


@pytest.mark.parametrize("op", ["And", "Or", "Xor"])
def test_logical(op: str) -> None:
    rng = np.random.default_rng(6)
    node = Node(op, [random(rng, "bool", 1)] * 2)
    reference = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}[op]
    for a_shape, b_shape in SHAPES:
        a, b = random(rng, "bool", *a_shape), random(rng, "bool", *b_shape)
        assert_close(node(a, b)[0], reference(a, b), "bool")


BITWISE = {
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
}


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", BITWISE)
def test_bitwise(op: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    node = Node(op, [random(rng, dtype, 1)] * 2)
    for a_shape, b_shape in SHAPES:
        a, b = random(rng, dtype, *a_shape), random(rng, dtype, *b_shape)
        assert_close(node(a, b)[0], BITWISE[op](a, b), dtype)


@pytest.mark.parametrize("dtype", INTS)
def test_bitwise_not(dtype: str) -> None:
    x = random(np.random.default_rng(8), dtype, 3, 70)
    assert_close(run_npu("BitwiseNot", [x])[0], np.bitwise_not(x), dtype)


def test_not() -> None:
    assert_close(run_npu("Not", [np.array([True, False])])[0], np.array([False, True]), "bool")


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_variadic_min_and_max(op: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    reference = np.maximum if op == "Max" else np.minimum
    for shapes in [
        ((2, 3),),
        ((2, 3), (3,)),
        ((2, 1), (1, 3), ()),
        ((4, 1, 600), (3, 1), (600,), (1,)),
    ]:
        inputs = [random(rng, dtype, *shape) for shape in shapes]
        if dtype in FLOATS and inputs[0].ndim:
            inputs[0][..., 0] = np.nan  # wins
        expected = wide(inputs[0])
        for x in inputs[1:]:
            expected = reference(expected, wide(x))
        assert_close(run_npu(op, inputs)[0], expected, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_variadic_sum_rounds_once(dtype: str) -> None:
    rng = np.random.default_rng(8)
    inputs = [
        random(rng, dtype, *shape, low=0) for shape in [(5, 1, 40), (3, 1), (), (40,), (5, 3, 40)]
    ]
    expected = sum(wide(x) for x in inputs)
    assert_close(run_npu("Sum", inputs)[0], expected, dtype)


erf = np.vectorize(math.erf, otypes=[np.float64])


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, np.exp(-np.maximum(-x, 0)), 1) / (1 + np.exp(-np.abs(x)))


# operator: reference, attributes
FUNCTIONS = {
    "Sqrt": (np.sqrt, {}),
    "Reciprocal": (np.reciprocal, {}),
    "Floor": (np.floor, {}),
    "Ceil": (np.ceil, {}),
    "Round": (np.rint, {}),
    "Exp": (np.exp, {}),
    "Log": (np.log, {}),
    "Erf": (erf, {}),
    "Tanh": (np.tanh, {}),
    "Sigmoid": (sigmoid, {}),
    "Sin": (np.sin, {}),
    "Cos": (np.cos, {}),
    "Softplus": (softplus, {}),
    "LeakyRelu": (lambda x: np.where(x < 0, 0.25 * x, x), {"alpha": 0.25}),
    "Neg": (np.negative, {}),
    "Abs": (np.abs, {}),
    "Sign": (np.sign, {}),
    "Relu": (lambda x: np.where(x < 0, 0, x), {}),
}
SPECIAL = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1.5,
    2.5,
    1e-30,
    -1e-30,
    60000,
    88.0,
    -104,
]
UNARY_SHAPES = [(), (1,), (0, 3), (2, 3, 5), (70001,)]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_function(op: str, dtype: str) -> None:
    rng = np.random.default_rng(9)
    reference, attributes = FUNCTIONS[op]
    opset = 22 if dtype == "bfloat16" else 21  # several accept bfloat16 only since opset 22
    node = Node(op, [np.zeros(1, dtype_of(dtype))], opset=opset, **attributes)
    low = 0 if op in ("Sqrt", "Log") else -9
    values = [random(rng, dtype, *shape, low=low, high=9) for shape in UNARY_SHAPES]
    with np.errstate(all="ignore"):
        special = np.array(SPECIAL).astype(dtype_of(dtype))
        for x in [*values, special]:
            assert_close(node(x)[0], reference(wide(x)), dtype)


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("op", ["Neg", "Abs", "Sign", "Relu"])
def test_integer_function(op: str, dtype: str) -> None:
    if op in ("Neg", "Relu") and dtype not in SIGNED_INTS:
        pytest.skip(f"ONNX has no {op} of unsigned integers")
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, 5], dtype)
    reference = {"Relu": lambda v: np.maximum(v, 0)}.get(op, FUNCTIONS[op][0])
    with np.errstate(over="ignore"):
        assert_close(run_npu(op, [x])[0], reference(x).astype(dtype), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str, dtype: str) -> None:
    rng = np.random.default_rng(10)
    x = random(rng, dtype, 1000, low=-6, high=6)
    v = wide(x)
    if approximate == "none":
        expected = 0.5 * v * (1 + erf(v / math.sqrt(2)))
    else:
        expected = 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    got = run_npu("Gelu", [x], approximate=approximate)[0]
    # 1 + erf(x) cancels for negative x: the error is an ulp of 1, scaled by x.
    one = 2.0**-52 if dtype == "float64" else 2.0**-23
    np.testing.assert_allclose(
        got.astype(np.float64), expected, rtol=max(RTOL[dtype], 1e-14), atol=6 * one
    )


@pytest.mark.parametrize("dtype", FLOATS)
def test_swish(dtype: str) -> None:
    x = random(np.random.default_rng(11), dtype, 3, 500)
    got = run_npu("Swish", [x], opset=24, alpha=1.5)[0]
    assert_close(got, wide(x) * sigmoid(1.5 * wide(x)), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_classification(dtype: str) -> None:
    x = np.array(SPECIAL).astype(dtype_of(dtype))
    assert_close(run_npu("IsNaN", [x])[0], np.isnan(wide(x)), "bool")
    for positive in (0, 1):
        for negative in (0, 1):
            got = run_npu("IsInf", [x], detect_positive=positive, detect_negative=negative)[0]
            expected = (positive & (wide(x) == np.inf)) | (negative & (wide(x) == -np.inf))
            assert_close(got, expected.astype(bool), "bool")


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
def test_clip(dtype: str) -> None:
    rng = np.random.default_rng(12)
    x = random(rng, dtype, 1000, low=-9, high=9)
    if dtype in FLOATS:
        x[0] = np.nan
    low, high = (np.array(v, dtype_of(dtype)) for v in (1, 5))
    assert_close(run_npu("Clip", [x, low, high])[0], np.clip(wide(x), 1, 5), dtype)
    assert_close(run_npu("Clip", [x, None, high])[0], np.minimum(wide(x), 5), dtype)
    assert_close(run_npu("Clip", [x, low])[0], np.maximum(wide(x), 1), dtype)
    assert_close(run_npu("Clip", [x])[0], wide(x), dtype)
    crossed = run_npu("Clip", [x, high, low])[0]  # max wins
    assert_close(crossed, np.where(np.isnan(wide(x)), wide(x), 1), dtype)


def test_clip_with_attributes() -> None:
    x = np.array([-2, 0.5, 3], np.float32)
    assert_close(
        run_npu("Clip", [x], opset=10, min=0.0, max=1.0)[0], np.array([0, 0.5, 1]), "float32"
    )


@pytest.mark.parametrize("dtype", FIXED_WIDTH)
def test_where(dtype: str) -> None:
    rng = np.random.default_rng(13)
    node = Node("Where", [random(rng, "bool", 1), random(rng, dtype, 1), random(rng, dtype, 1)])
    for x_shape, y_shape in SHAPES:
        for c_shape in (x_shape, y_shape, ()):
            c = random(rng, "bool", *c_shape)
            x, y = random(rng, dtype, *x_shape), random(rng, dtype, *y_shape)
            assert_close(node(c, x, y)[0], np.where(c, wide(x), wide(y)), dtype)


@pytest.mark.parametrize("source", FIXED_WIDTH)
@pytest.mark.parametrize("target", FIXED_WIDTH)
def test_cast(source: str, target: str) -> None:
    rng = np.random.default_rng(14)
    low = 0 if target.startswith("uint") else -100
    x = random(rng, source, 3, 700, low=low, high=100)
    x[0, 0] = 0
    to = helper.np_dtype_to_tensor_dtype(dtype_of(target))
    if target == "bool":
        expected = wide(x) != 0
    elif target in INTS:
        expected = wide(x).astype(target)
    else:
        expected = wide(x).astype(np.float64)
    assert_close(run_npu("Cast", [x], to=to)[0], expected, target)
    assert_close(run_npu("CastLike", [x, np.zeros(1, dtype_of(target))])[0], expected, target)


@pytest.mark.parametrize(
    "target", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_out_of_range_cast_matches_onnxruntime(source: str, target: str) -> None:
    info = np.iinfo(target)
    inside = [0.0, 0.9, -0.9 if info.min else 0.0, float(info.max // 2), info.min / 2]
    outside = [np.nan, np.inf, -np.inf, 3e9, -3e9, 1e19, -1e19, 300.0, -300.0]
    to = helper.np_dtype_to_tensor_dtype(np.dtype(target))
    # The conversion to uint32 is up to the compiler: onnxruntime's results are no reference.
    for values in (inside, outside) if target != "uint32" else (inside,):
        x = np.array(values, source)
        node = Node("Cast", [x], to=to)
        cpu = Node("Cast", [x], provider=CPU, to=to)
        np.testing.assert_array_equal(node(x)[0], cpu(x)[0])


@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "Sub"])
def test_float32_is_bit_equal_to_onnxruntime(op: str) -> None:
    rng = np.random.default_rng(15)
    a, b = (random(rng, "float32", 64, 33) for _ in range(2))
    node, cpu = (Node(op, [a, b], provider=p) for p in (NPU, CPU))
    np.testing.assert_array_equal(node(a, b)[0], cpu(a, b)[0])


def test_non_broadcastable_shapes_are_an_error() -> None:
    node = Node("Add", [np.zeros(1, np.float32)] * 2)
    with pytest.raises(
        Exception, match=r"\[Add\] expected broadcastable shapes, got \[2\] and \[3\]"
    ):
        node(np.zeros(2, np.float32), np.zeros(3, np.float32))


def test_in_place_chain() -> None:
    """Static shapes: onnxruntime gives each node its input's buffer as output."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("Sqrt", ["b"], ["c"]),
        helper.make_node("Mul", ["x", "c"], ["d"]),
        helper.make_node("Where", ["m", "d", "c"], ["e"]),
        helper.make_node("Max", ["e", "x"], ["f"]),
        helper.make_node("Clip", ["f", "", "limit"], ["g"]),
        helper.make_node("Exp", ["g"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [50, 40]),
            helper.make_tensor_value_info("m", TensorProto.BOOL, [50, 40]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [50, 40])],
        [onnx.numpy_helper.from_array(np.array(2, np.float32), "limit")],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=IR_VERSION
    )
    session = make_session(model)
    assert len(npu_nodes(session)) == len(nodes)
    rng = np.random.default_rng(16)
    x, m = random(rng, "float32", 50, 40), random(rng, "bool", 50, 40)
    c = np.sqrt(np.abs(x) + x)
    expected = np.exp(np.minimum(np.maximum(np.where(m, x * c, c), x), 2))
    np.testing.assert_allclose(session.run(None, {"x": x, "m": m})[0], expected, rtol=1e-6)

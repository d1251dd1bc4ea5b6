"""MatMul and Gemm through a session, against NumPy in double precision."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_nodes import (
    FLOATS,
    IR_VERSION,
    NPU,
    Node,
    dtype_of,
    make_session,
    npu_nodes,
    random,
    run_npu,
    run_session,
)

MATRIX_TYPES = [*FLOATS, "int32", "int64", "uint32", "uint64"]
HALF_ULP = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((4,), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (1, 6, 4, 5)),
    ((6, 3, 4), (2, 1, 4, 5)),
    ((2, 9, 17, 33), (2, 9, 33, 40)),
    ((1, 576), (576, 192)),
    ((37, 600), (600, 77)),
    ((5, 3000), (3000, 33)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
    ((2, 3, 4), (2, 4, 0)),
    ((0, 3, 4), (4, 5)),
]


def assert_product(got: np.ndarray, expected, magnitudes, depth: int, dtype: str) -> None:
    """Equal up to a sum of `depth` products in float32 (double: in double) and one rounding."""
    assert got.dtype == dtype_of(dtype)
    assert got.shape == np.shape(expected)
    if dtype not in HALF_ULP:
        np.testing.assert_array_equal(got, expected)
        return
    accumulate = HALF_ULP["float64" if dtype == "float64" else "float32"]
    bound = (depth + 2) * accumulate * magnitudes + HALF_ULP[dtype] * np.abs(expected) + 1e-7
    assert np.all(np.abs(got.astype(np.float64) - expected) <= bound)


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind not in "iu" else array


@pytest.mark.parametrize("constant", [(), (1,)], ids=["dynamic", "constant"])
@pytest.mark.parametrize("dtype", MATRIX_TYPES)
def test_matmul_follows_numpy(dtype: str, constant: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    for a_shape, b_shape in SHAPES:
        a, b = random(rng, dtype, *a_shape), random(rng, dtype, *b_shape)
        (got,) = run_npu("MatMul", [a, b], constant=constant)
        a, b = wide(a), wide(b)
        magnitudes = np.matmul(np.abs(a), np.abs(b))
        assert_product(got, np.matmul(a, b), magnitudes, a_shape[-1], dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_constant_weight_works_for_any_number_of_rows(dtype: str) -> None:
    rng = np.random.default_rng(1)
    weight = random(rng, dtype, 130, 75)
    node = Node("MatMul", [np.zeros((1, 1), dtype_of(dtype)), weight], constant=(1,))
    for rows in (1, 2, 5, 8, 16, 100, 1, 0):
        x = random(rng, dtype, rows, 130)
        (got,) = node(x, None)
        expected = wide(x) @ wide(weight)
        assert_product(got, expected, np.abs(wide(x)) @ np.abs(wide(weight)), 130, dtype)


C_SHAPES = [(), (1,), (33,), (1, 33), (14, 1), (14, 33)]


def check_gemm(
    dtype: str, trans_a: int, trans_b: int, c_shape: tuple[int, ...], constant=(), opset: int = 21
) -> None:
    rng = np.random.default_rng(2)
    a = random(rng, dtype, *((19, 14) if trans_a else (14, 19)))
    b = random(rng, dtype, *((33, 19) if trans_b else (19, 33)))
    c = random(rng, dtype, *c_shape)
    attributes = {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": -2.0}
    (got,) = run_npu("Gemm", [a, b, c], opset=opset, constant=constant, **attributes)
    left, right = wide(a.T if trans_a else a), wide(b.T if trans_b else b)
    expected = 0.5 * (left @ right) - 2.0 * wide(c)
    magnitudes = 0.5 * (np.abs(left) @ np.abs(right)) + 2.0 * np.abs(wide(c))
    assert_product(got, expected, magnitudes, 19, dtype)


@pytest.mark.parametrize("constant", [(), (1,), (1, 2)], ids=["dynamic", "weight", "weight_bias"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gemm(dtype: str, constant: tuple[int, ...]) -> None:
    for trans_a, trans_b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        check_gemm(dtype, trans_a, trans_b, (33,), constant)
    for c_shape in C_SHAPES:
        check_gemm(dtype, 0, 1, c_shape, constant)


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
def test_gemm_of_older_opsets(opset: int) -> None:
    for c_shape in C_SHAPES:
        check_gemm("float32", 0, 1, c_shape, (1,), opset)


def test_gemm_without_c() -> None:
    rng = np.random.default_rng(3)
    a, b = random(rng, "float32", 3, 5), random(rng, "float32", 5, 4)
    (got,) = run_npu("Gemm", [a, b])
    assert_product(got, wide(a) @ wide(b), np.abs(wide(a)) @ np.abs(wide(b)), 5, "float32")


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_gemm_of_integers(dtype: str) -> None:
    rng = np.random.default_rng(4)
    a, b, c = (random(rng, dtype, *shape) for shape in ((3, 5), (5, 4), (4,)))
    (got,) = run_npu("Gemm", [a, b, c])
    np.testing.assert_array_equal(got, a @ b + c)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nan_and_infinity_stay_within_their_rows_and_columns(dtype: str) -> None:
    a, b = np.ones((5, 7), dtype), np.ones((7, 40), dtype)
    a[1, 6], a[2, 0], b[3, 39] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        (got,) = run_npu("MatMul", [a, b])
        np.testing.assert_array_equal(got, np.matmul(a, b))


def test_matmul_add_fused_by_onnxruntime_runs_on_npu() -> None:
    rng = np.random.default_rng(5)
    x, w, bias = (random(rng, "float32", *shape) for shape in ((3, 8), (8, 6), (6,)))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Add", ["product", "b"], ["y"]),
        ],
        "fused",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 8])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 6])],
        [onnx.numpy_helper.from_array(w, "w"), onnx.numpy_helper.from_array(bias, "b")],
    )
    opsets = [helper.make_opsetid("", 21)]
    session = make_session(helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION))
    assert npu_nodes(session) == ["Gemm"]
    (got,) = run_session(session, {"x": x})
    expected = wide(x) @ wide(w) + wide(bias)
    magnitudes = np.abs(wide(x)) @ np.abs(wide(w)) + np.abs(wide(bias))
    assert_product(got, expected, magnitudes, 8, "float32")


@pytest.mark.parametrize("constant", [(), (1,)], ids=["dynamic", "constant"])
def test_mismatched_operands_fail_and_session_stays_usable(
    constant: tuple[int, ...],
) -> None:
    weight = np.ones((4, 5), np.float32)
    node = Node("MatMul", [np.zeros((1, 1), np.float32), weight], constant=constant, provider=NPU)
    with pytest.raises(Exception, match=r"\[MatMul\] expected .* got \[2, 3\] and \[4, 5\]"):
        node(np.ones((2, 3), np.float32), weight)
    np.testing.assert_array_equal(node(np.ones((2, 4), np.float32), weight)[0], np.full((2, 5), 4))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (2, 3, 4, 4), (40, 2, 2), (3, 0, 0), (0, 3, 3)])
def test_determinant(shape, dtype) -> None:
    x = random(np.random.default_rng(6), dtype, *shape, low=-2, high=2)
    got = run_npu("Det", [x], opset=22)[0]
    expected = np.linalg.det(x.astype(np.float64))
    assert got.dtype == x.dtype and got.shape == expected.shape
    # Both eliminate in double; one rounding to the type is left.
    rtol = 1e-12 if dtype == "float64" else 2 * HALF_ULP[dtype]
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol, 1e-12)


def test_determinants_of_singular_and_permuted_matrices_and_nan() -> None:
    singular, permutation = np.ones((3, 3)), np.eye(4)[[1, 2, 3, 0]]
    assert run_npu("Det", [singular], opset=22)[0] == 0
    assert run_npu("Det", [permutation], opset=22)[0] == -1
    singular[1, 1] = np.nan
    assert np.isnan(run_npu("Det", [singular], opset=22)[0])
    for wrong in (np.ones(4), np.ones((2, 3))):
        with pytest.raises(Exception, match=r"(?i)square|rank"):
            run_npu("Det", [wrong], opset=22)

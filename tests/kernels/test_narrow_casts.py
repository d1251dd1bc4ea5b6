"""Casts of 8-bit floats and 4-bit integers against ml_dtypes; DequantizeLinear of the latter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_backend
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_nodes import NPU, make_session

FLOATS8 = {
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
INTS4 = {"INT4": ml_dtypes.int4, "UINT4": ml_dtypes.uint4}
ALL = FLOATS8 | INTS4


def run(op: str, inputs: list[np.ndarray], element: str, **attributes) -> np.ndarray:
    """One node on the NPU, whose output has the element type `element`."""
    protos = [numpy_helper.from_array(a, f"x{i}") for i, a in enumerate(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op, [p.name for p in protos], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info(p.name, p.data_type, p.dims) for p in protos],
        [helper.make_tensor_value_info("y", getattr(TensorProto, element), None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    session = make_session(model)
    assert {row["provider"] for row in onnxruntime_npu.assignment(session)} == {NPU}
    feeds = {p.name: onnx_backend.ort_value(p) for p in protos}
    return onnx_backend.array_of(session.run_with_ort_values(None, feeds)[0])


def cast(x: np.ndarray, to: str, **attributes) -> np.ndarray:
    return run("Cast", [x], to, to=getattr(TensorProto, to), **attributes)


@pytest.mark.parametrize("name", FLOATS8)
def test_every_8_bit_float_as_other_types(name) -> None:
    x = np.arange(256, dtype=np.uint8).view(FLOATS8[name])
    for to in ("FLOAT", "FLOAT16", "DOUBLE"):
        expected = x.astype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, to)))
        np.testing.assert_array_equal(cast(x, to), expected)
    back = cast(x, name)
    np.testing.assert_array_equal(back.view(np.uint8), x.view(np.uint8))


@pytest.mark.parametrize("name", FLOATS8)
def test_rounding_to_8_bit_floats(name) -> None:
    """Every value, every middle between two neighbours, and their neighbours in float32."""
    kind = FLOATS8[name]
    every = np.arange(256, dtype=np.uint8).view(kind).astype(np.float32)
    every = np.unique(every[np.isfinite(every)])
    middle = (every[1:] + every[:-1]) / 2
    near = [np.nextafter(middle, np.float32(s)) for s in (-np.inf, np.inf)]
    x = np.concatenate([every, middle, *near, np.float32([1e-30, -1e-30, 0, -0.0])])
    np.testing.assert_array_equal(cast(x, name).view(np.uint8), x.astype(kind).view(np.uint8))
    assert np.isnan(cast(np.full(3, np.nan, np.float32), name).astype(np.float32)).all()


@pytest.mark.parametrize("name", FLOATS8)
def test_saturation(name) -> None:
    kind = FLOATS8[name]
    largest = float(ml_dtypes.finfo(kind).max)
    x = np.array([1e6, -1e6, np.inf, -np.inf], np.float32)
    expected = largest * np.sign(x)
    np.testing.assert_array_equal(cast(x, name).astype(np.float32), expected)
    open_ended = cast(x, name, saturate=0).astype(np.float32)
    if name == "FLOAT8E5M2":
        np.testing.assert_array_equal(open_ended, np.sign(x) * np.inf)
    else:
        assert np.isnan(open_ended).all()


@pytest.mark.parametrize("name", INTS4)
@pytest.mark.parametrize("count", [1, 2, 7, 255, 256, 257, 5001])
def test_4_bit_integers(count, name) -> None:
    rng = np.random.default_rng(count)
    low = 0 if name == "UINT4" else -8
    values = rng.integers(low, low + 16, count)
    x = values.astype(INTS4[name])
    for to in ("FLOAT", "INT8", "INT64", "FLOAT16"):
        np.testing.assert_array_equal(cast(x, to).astype(np.int64), values)
    for kind in (np.float32, np.int32, np.int8):
        np.testing.assert_array_equal(cast(values.astype(kind), name).astype(np.int64), values)
    np.testing.assert_array_equal(cast(x, "BOOL"), values != 0)
    assert cast(x[:0], name).shape == (0,)


@pytest.mark.parametrize("name", ALL)
def test_cast_like(name) -> None:
    x = np.array([1, 2, 3, 6], np.float32)
    like = np.zeros(1, ALL[name])
    np.testing.assert_array_equal(run("CastLike", [x, like], name).astype(np.float32), x)


@pytest.mark.parametrize("with_points", [False, True])
@pytest.mark.parametrize("name", INTS4)
def test_dequantize_linear_of_4_bits(name, with_points) -> None:
    rng = np.random.default_rng(3)
    low = 0 if name == "UINT4" else -8
    values = rng.integers(low, low + 16, (6, 33))
    x = values.astype(INTS4[name])
    for scale_shape, attributes in [
        ((), {}),
        ((33,), {"axis": 1}),
        ((3, 33), {"axis": 0, "block_size": 2}),
    ]:
        scale = rng.uniform(0.5, 1, scale_shape).astype(np.float32)
        points = rng.integers(low, low + 16, scale_shape)
        given = [x, scale, points.astype(INTS4[name])] if with_points else [x, scale]
        got = run("DequantizeLinear", given, "FLOAT", **attributes)
        if "block_size" in attributes:
            scale, points = scale.repeat(2, 0), points.repeat(2, 0)
        expected = (values - (points if with_points else 0)).astype(np.float32) * scale
        np.testing.assert_array_equal(got, expected)

"""Casts, (de)quantisation and movement of narrow types against ml_dtypes and NumPy."""

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
FLOATS = FLOATS8 | {"FLOAT4E2M1": ml_dtypes.float4_e2m1fn}
INTS = {
    "INT4": ml_dtypes.int4,
    "UINT4": ml_dtypes.uint4,
    "INT2": ml_dtypes.int2,
    "UINT2": ml_dtypes.uint2,
}
ALL = FLOATS | INTS


def run(
    op: str, inputs: list[np.ndarray], element: str, opset: int = 25, **attributes
) -> np.ndarray:
    """One node on the NPU, whose output has the element type `element`."""
    protos = [numpy_helper.from_array(a, f"x{i}") for i, a in enumerate(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op, [p.name for p in protos], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info(p.name, p.data_type, unknown(p)) for p in protos],
        [helper.make_tensor_value_info("y", getattr(TensorProto, element), None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    session = make_session(model)
    assert {row["provider"] for row in onnxruntime_npu.assignment(session)} == {NPU}
    feeds = {p.name: onnx_backend.ort_value(p) for p in protos}
    return onnx_backend.array_of(session.run_with_ort_values(None, feeds)[0])


def unknown(proto: TensorProto) -> list[str]:
    """Dimensions without sizes, so that onnxruntime does not fold Shape."""
    return [f"{proto.name}_{d}" for d in range(len(proto.dims))]


def cast(x: np.ndarray, to: str, **attributes) -> np.ndarray:
    return run("Cast", [x], to, to=getattr(TensorProto, to), **attributes)


def codes(name: str) -> np.ndarray:
    """All bit patterns of a type, which ml_dtypes stores in a byte each."""
    return np.arange(16 if name == "FLOAT4E2M1" else 256, dtype=np.uint8).view(FLOATS[name])


@pytest.mark.parametrize("name", FLOATS8)
def test_every_code_is_classified(name):
    every = codes(name)
    wide = every.astype(np.float32)
    for times in (1, 300):  # more than a thread's share
        x = np.tile(every, times)
        np.testing.assert_array_equal(
            run("IsNaN", [x], "BOOL", opset=20), np.tile(np.isnan(wide), times)
        )
    for negative, positive in ((0, 0), (0, 1), (1, 0), (1, 1)):
        how = {"detect_negative": negative, "detect_positive": positive}
        wanted = (np.isposinf(wide) & bool(positive)) | (np.isneginf(wide) & bool(negative))
        np.testing.assert_array_equal(run("IsInf", [every], "BOOL", opset=20, **how), wanted)
    assert run("IsNaN", [every[:0]], "BOOL", opset=20).shape == (0,)


@pytest.mark.parametrize("name", FLOATS)
def test_every_narrow_float_as_other_types(name) -> None:
    x = codes(name)
    for to in ("FLOAT", "FLOAT16", "DOUBLE"):
        expected = x.astype(helper.tensor_dtype_to_np_dtype(getattr(TensorProto, to)))
        np.testing.assert_array_equal(cast(x, to), expected)
    back = cast(x, name)
    np.testing.assert_array_equal(back.view(np.uint8), x.view(np.uint8))


@pytest.mark.parametrize("name", FLOATS)
def test_rounding_to_narrow_floats(name) -> None:
    """Every value, every middle between two neighbours, and their neighbours in float32."""
    kind = FLOATS[name]
    every = codes(name).astype(np.float32)
    every = np.unique(every[np.isfinite(every)])
    middle = (every[1:] + every[:-1]) / 2
    near = [np.nextafter(middle, np.float32(s)) for s in (-np.inf, np.inf)]
    x = np.concatenate([every, middle, *near, np.float32([1e-30, -1e-30, 0, -0.0])])
    np.testing.assert_array_equal(cast(x, name).view(np.uint8), x.astype(kind).view(np.uint8))
    nan = cast(np.full(3, np.nan, np.float32), name).astype(np.float32)
    np.testing.assert_array_equal(nan, np.float32([np.nan] * 3).astype(kind).astype(np.float32))


@pytest.mark.parametrize("name", FLOATS)
def test_saturation(name) -> None:
    kind = FLOATS[name]
    largest = float(ml_dtypes.finfo(kind).max)
    x = np.array([1e6, -1e6, np.inf, -np.inf], np.float32)
    expected = largest * np.sign(x)
    np.testing.assert_array_equal(cast(x, name).astype(np.float32), expected)
    open_ended = cast(x, name, saturate=0).astype(np.float32)
    if name == "FLOAT4E2M1":
        np.testing.assert_array_equal(open_ended, expected)  # it has nothing else
    elif name == "FLOAT8E5M2":
        np.testing.assert_array_equal(open_ended, np.sign(x) * np.inf)
    else:
        assert np.isnan(open_ended).all()


def whole_numbers(rng: np.random.Generator, name: str, shape) -> np.ndarray:
    limits = ml_dtypes.iinfo(INTS[name])
    return rng.integers(limits.min, limits.max + 1, shape)


@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("count", [1, 2, 7, 255, 256, 257, 5001])
def test_narrow_integers(count, name) -> None:
    values = whole_numbers(np.random.default_rng(count), name, count)
    x = values.astype(INTS[name])
    for to in ("FLOAT", "INT8", "INT64", "FLOAT16"):
        np.testing.assert_array_equal(cast(x, to).astype(np.int64), values)
    for kind in (np.float32, np.int32, np.int8):
        np.testing.assert_array_equal(cast(values.astype(kind), name).astype(np.int64), values)
    np.testing.assert_array_equal(cast(x, "BOOL"), values != 0)
    assert cast(x[:0], name).shape == (0,)


@pytest.mark.parametrize("name", INTS)
def test_wide_integers_keep_their_lowest_bits(name) -> None:
    x = np.array([2**40 + 1, 2**62 + 3, -(2**33) + 2, 2**24 + 1])
    np.testing.assert_array_equal(cast(x, name).astype(np.int64), x.astype(INTS[name]).astype(int))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two(mode, saturate) -> None:
    """Float8e8m0 by its definition: the table of Cast, and which power is taken between two."""
    every = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    expected = every.astype(np.float64)
    np.testing.assert_array_equal(cast(every, "DOUBLE"), expected)
    back = cast(expected.astype(np.float32), "FLOAT8E8M0", round_mode=mode, saturate=saturate)
    np.testing.assert_array_equal(back.view(np.uint8), np.arange(256))
    for power in (-100.0, 0.0, 3.0):
        for share, nearest in ((1.25, 0), (1.4999, 0), (1.5, 1), (1.75, 1)):
            got = cast(np.float32([share * 2**power]), "FLOAT8E8M0", round_mode=mode)
            up = {"up": 1, "down": 0, "nearest": nearest}[mode]
            assert got.astype(np.float64)[0] == 2 ** (power + up)
    x = np.float32([0, np.inf, np.nan, 2.0**-130])
    got = cast(x, "FLOAT8E8M0", round_mode=mode, saturate=saturate).view(np.uint8).tolist()
    assert got == ([0, 254, 255, 0] if saturate else [255] * 4)


def test_an_unknown_round_mode_is_refused() -> None:
    with pytest.raises(Exception, match="round_mode up, down or nearest"):
        cast(np.ones(1, np.float32), "FLOAT8E8M0", round_mode="sideways")


@pytest.mark.parametrize("name", ALL)
def test_cast_like(name) -> None:
    x = np.array([1, 0, 1, 1], np.float32)
    like = np.zeros(1, ALL[name])
    np.testing.assert_array_equal(run("CastLike", [x, like], name).astype(np.float32), x)


# (shape of the scales, attributes) for [6, 33].
LAYOUTS = [((), {}), ((33,), {"axis": 1}), ((3, 33), {"axis": 0, "block_size": 2})]


def spread(values: np.ndarray, attributes: dict) -> np.ndarray:
    return values.repeat(2, 0) if "block_size" in attributes else values


@pytest.mark.parametrize("with_points", [False, True])
@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("of_scales, attributes", LAYOUTS, ids=str)
def test_quantised_narrow_integers(of_scales, attributes, name, with_points) -> None:
    rng = np.random.default_rng(3)
    limits = ml_dtypes.iinfo(INTS[name])
    scale = rng.uniform(0.5, 1, of_scales).astype(np.float32)
    points = whole_numbers(rng, name, of_scales) if with_points else np.zeros(of_scales, int)
    by, plus = spread(scale, attributes), spread(points, attributes)
    extra = [points.astype(INTS[name])] if with_points else []
    values = whole_numbers(rng, name, (6, 33))
    got = run("DequantizeLinear", [values.astype(INTS[name]), scale, *extra], "FLOAT", **attributes)
    np.testing.assert_array_equal(got, (values - plus).astype(np.float32) * by)
    x = rng.uniform(-12, 12, (6, 33)).astype(np.float32)
    to = {} if with_points else {"output_dtype": getattr(TensorProto, name)}
    got = run("QuantizeLinear", [x, scale, *extra], name, **attributes, **to)
    expected = np.clip(np.rint(x / by) + plus, limits.min, limits.max)
    np.testing.assert_array_equal(got.astype(np.int64), expected)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("of_scales, attributes", LAYOUTS, ids=str)
def test_quantised_narrow_floats(of_scales, attributes, name) -> None:
    rng = np.random.default_rng(4)
    scale = rng.uniform(0.5, 1, of_scales).astype(np.float32)
    x = rng.uniform(-12, 12, (6, 33)).astype(np.float32)
    by, zeros = spread(scale, attributes), np.zeros(of_scales, FLOATS[name])
    quantised = run("QuantizeLinear", [x, scale, zeros], name, **attributes)
    np.testing.assert_array_equal(
        quantised.view(np.uint8), (x / by).astype(FLOATS[name]).view(np.uint8)
    )
    back = run("DequantizeLinear", [quantised, scale, zeros], "FLOAT", **attributes)
    np.testing.assert_array_equal(back, quantised.astype(np.float32) * by)
    ones = np.ones(of_scales, FLOATS[name])
    with pytest.raises(Exception, match="zero points of 0 for floats"):
        run("DequantizeLinear", [quantised, scale, ones], "FLOAT", **attributes)


def test_microscaling() -> None:
    """Blocks of 32 4-bit floats that share a power of two, as MXFP4 weights have them."""
    rng = np.random.default_rng(5)
    x = rng.uniform(-6, 6, (4, 64)).astype(ml_dtypes.float4_e2m1fn)
    scale = 2.0 ** rng.integers(-9, 9, (4, 2))
    how = {"axis": 1, "block_size": 32}
    given = [x, scale.astype(ml_dtypes.float8_e8m0fnu)]
    got = run("DequantizeLinear", given, "FLOAT", output_dtype=TensorProto.FLOAT, **how)
    expected = x.astype(np.float32) * scale.repeat(32, 1)
    np.testing.assert_array_equal(got, expected)
    to = {"output_dtype": TensorProto.FLOAT4E2M1}
    back = run("QuantizeLinear", [got, given[1]], "FLOAT4E2M1", **to, **how)
    np.testing.assert_array_equal(back.astype(np.float32), x.astype(np.float32))


WITH_POWERS = ALL | {"FLOAT8E8M0": ml_dtypes.float8_e8m0fnu}
WHOLE_BYTES = [name for name in WITH_POWERS if name.startswith("FLOAT8")]


def last_code(kind: np.dtype) -> int:
    """The greatest code of a type: its bits, which are the lowest of a byte."""
    return {"int2": 3, "uint2": 3, "int4": 15, "uint4": 15, "float4_e2m1fn": 15}.get(kind.name, 255)


def some(name: str, *shape: int) -> np.ndarray:
    """Random codes of a type."""
    kind = np.dtype(WITH_POWERS[name])
    values = np.random.default_rng(6).integers(0, last_code(kind) + 1, shape)
    return values.astype(np.uint8).view(kind)


def assert_same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == expected.dtype
    mask = np.uint8(last_code(got.dtype))  # the bits above are of no meaning
    np.testing.assert_array_equal(got.view(np.uint8) & mask, expected.view(np.uint8) & mask)


@pytest.mark.parametrize("name", WITH_POWERS)
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 64, 33), (0, 3, 2)], ids=str)
def test_views_of_narrow_types(shape, name) -> None:
    x = some(name, *shape)
    a, b, c = shape
    ints = lambda *values: np.array(values, np.int64)  # noqa: E731
    assert_same(run("Identity", [x], name), x)
    assert_same(run("Reshape", [x, ints(a, c, b)], name), x.reshape(a, c, b))
    assert_same(run("Flatten", [x], name, axis=2), x.reshape(a * b, c))
    assert_same(run("Unsqueeze", [x, ints(0)], name), x[None])
    assert_same(run("Squeeze", [x[None], ints(0)], name), x)
    assert run("Shape", [x], "INT64").tolist() == list(shape)
    assert run("Size", [x], "INT64") == x.size


@pytest.mark.parametrize("name", WITH_POWERS)
@pytest.mark.parametrize(
    "shape, perm", [((2, 3), (1, 0)), ((33, 1, 47), (2, 1, 0)), ((3, 0), (1, 0)), ((5,), (0,))]
)
def test_transpose_of_narrow_types(shape, perm, name) -> None:
    x = some(name, *shape)
    got = run("Transpose", [x], name, perm=perm)
    assert_same(got, np.ascontiguousarray(x.transpose(perm)))


@pytest.mark.parametrize("name", WITH_POWERS)
@pytest.mark.parametrize("count", [1, 2, 5, 1001])
def test_constants_of_narrow_types(count, name) -> None:
    value = numpy_helper.from_array(some(name, 1))
    got = run("ConstantOfShape", [np.array([count], np.int64)], name, value=value)
    assert_same(got, some(name, 1).repeat(count))


@pytest.mark.parametrize("name", WHOLE_BYTES)
def test_8_bit_floats_are_padded_and_written_to_caches(name) -> None:
    x, pads = some(name, 2, 3), np.array([0, 1, 1, 2], np.int64)
    padded = np.pad(x.view(np.uint8), ((0, 1), (1, 2)), constant_values=7).view(x.dtype)
    assert_same(run("Pad", [x, pads, np.array(7, np.uint8).view(x.dtype)], name), padded)
    cache, rows = some(name, 2, 4, 3), some(name, 2, 1, 3)
    expected = cache.copy()
    expected[0, 1], expected[1, 3] = rows[0, 0], rows[1, 0]
    assert_same(run("TensorScatter", [cache, rows, np.array([1, 3])], name), expected)


@pytest.mark.parametrize("to", ["INT4", "FLOAT4E2M1"])
def test_bit_cast_of_4_bit_types(to) -> None:
    x = some("UINT4", 3, 5)
    got = run("BitCast", [x], to, opset=26, to=getattr(TensorProto, to))
    assert_same(got, x.view(ALL[to]))


@pytest.mark.parametrize("name", ["INT4", "FLOAT8E4M3FN"])
def test_narrow_values_between_nodes_stay_on_the_device(name) -> None:
    """Onnxruntime has no copy of 4-bit integers to the CPU between two nodes."""
    element = getattr(TensorProto, name)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("Transpose", ["q"], ["t"]),
        helper.make_node("DequantizeLinear", ["t", "scale", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            helper.make_tensor("scale", TensorProto.FLOAT, [], [0.5]),
            helper.make_tensor("zero", element, [], [0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    session = make_session(model)
    assert {row["provider"] for row in onnxruntime_npu.assignment(session)} == {NPU}
    x = np.arange(-6, 6, dtype=np.float32).reshape(3, 4) / 2
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.T)

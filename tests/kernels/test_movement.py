"""Operators that move or generate elements, for every element size."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnx_nodes import (
    FIXED_WIDTH,
    IR_VERSION,
    Node,
    assert_close,
    dtype_of,
    make_session,
    npu_nodes,
    random,
    run_cpu,
    run_npu,
)

SIZES = ["int8", "bfloat16", "float32", "int64", "bool"]
INT64_MIN, INT64_MAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("dtype", FIXED_WIDTH)
def test_views(dtype: str) -> None:
    x = random(np.random.default_rng(1), dtype, 2, 3, 4)
    assert_close(run_npu("Identity", [x])[0], x, dtype)
    reshape = Node("Reshape", [x, ints(1)])
    for shape in ([6, 4], [-1], [0, -1], [4, 0, 2], [1, 2, 3, 4, 1], [24]):
        got = reshape(x, ints(*shape))[0]
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(shape)]
        assert_close(got, x.reshape(target), dtype)
    assert_close(run_npu("Flatten", [x], axis=-1)[0], x.reshape(6, 4), dtype)
    assert_close(run_npu("Flatten", [x], axis=0)[0], x.reshape(1, 24), dtype)
    assert_close(run_npu("Unsqueeze", [x, ints(-1, 0)])[0], x[None, ..., None], dtype)
    y = x.reshape(1, 2, 1, 12, 1)
    assert_close(run_npu("Squeeze", [y, ints(-1, 2)])[0], x.reshape(1, 2, 12), dtype)
    assert_close(run_npu("Squeeze", [y])[0], x.reshape(2, 12), dtype)
    if dtype == "bfloat16":
        return  # not a type of the older versions
    assert_close(run_npu("Squeeze", [y], opset=11, axes=[0])[0], x.reshape(2, 1, 12, 1), dtype)
    assert_close(run_npu("Unsqueeze", [x], opset=11, axes=[1])[0], x[:, None], dtype)


def test_reshape_of_empty_tensors_and_scalars() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert run_npu("Reshape", [empty, ints(-1, 3)])[0].shape == (0, 3)
    assert run_npu("Reshape", [empty, ints(3, 0)], allowzero=1)[0].shape == (3, 0)
    scalar = np.array(2, np.float32)
    assert run_npu("Reshape", [scalar, ints(1, 1)])[0].shape == (1, 1)
    assert run_npu("Reshape", [scalar, np.zeros(0, np.int64)])[0].shape == ()


@pytest.mark.parametrize(
    "target", [(-1, -1), (5,), (-2, 3), (0, 0, 0, -1), (INT64_MAX, INT64_MAX), (7, -1)]
)
def test_reshape_to_an_impossible_shape_is_an_error(target: tuple[int, ...]) -> None:
    node = Node("Reshape", [np.zeros((2, 3), np.float32), ints(1)])
    with pytest.raises(Exception, match=r"expected"):
        node(np.zeros((2, 3), np.float32), ints(*target))
    assert node(np.zeros((2, 3), np.float32), ints(3, 2))[0].shape == (3, 2)


def test_bad_axes_of_views_are_errors() -> None:
    x = np.zeros((2, 1), np.float32)
    squeeze = Node("Squeeze", [x, ints(0)])
    for axes, message in [((0,), "to be 1"), ((2,), "axis"), ((1, -1), "repetition")]:
        with pytest.raises(Exception, match=message):
            squeeze(x, ints(*axes))
    unsqueeze = Node("Unsqueeze", [x, ints(0)])
    for axes in [(4,), (0, 0), (-5,), tuple(range(20))]:
        with pytest.raises(Exception, match=r"expected"):
            unsqueeze(x, ints(*axes))


def test_view_does_not_affect_other_consumers() -> None:
    """The viewed tensor is read again after its views were changed in place."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["r"]),
        helper.make_node("Neg", ["r"], ["n"]),
        helper.make_node("Squeeze", ["n"], ["s"]),
        helper.make_node("Identity", ["a"], ["i"]),
        helper.make_node("Add", ["i", "a"], ["twice"]),
        helper.make_node("Reshape", ["x", "shape"], ["view_of_input"]),
    ]
    graph = helper.make_graph(
        nodes,
        "views",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in [("s", [3, 4]), ("twice", [2, 6]), ("view_of_input", [1, 3, 4])]
        ],
        [onnx.numpy_helper.from_array(ints(1, 3, 4), "shape")],
    )
    session = make_session(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=IR_VERSION)
    )
    x = random(np.random.default_rng(2), "float32", 2, 6)
    s, twice, view = session.run(None, {"x": x})
    np.testing.assert_array_equal(s, -np.abs(x).reshape(3, 4))
    np.testing.assert_array_equal(twice, 2 * np.abs(x))
    np.testing.assert_array_equal(view, x.reshape(1, 3, 4))


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize(
    "shape, perm",
    [
        ((2, 3), None),
        ((70, 33), (1, 0)),
        ((2, 3, 4, 5), (0, 2, 1, 3)),
        ((2, 40, 3, 50), (0, 1, 3, 2)),
        ((2, 17, 3, 18), (2, 0, 3, 1)),
        ((2, 3, 4, 5), (3, 2, 1, 0)),
        ((5, 1, 3), (2, 1, 0)),
        ((3, 0, 2), (2, 0, 1)),
        ((), ()),
        ((400, 300), (1, 0)),
        ((4, 300, 4, 64), (0, 2, 1, 3)),
    ],
)
def test_transpose(shape, perm, dtype: str) -> None:
    x = random(np.random.default_rng(3), dtype, *shape)
    attributes = {"perm": list(perm)} if perm else {}
    assert_close(run_npu("Transpose", [x], **attributes)[0], np.transpose(x, perm), dtype)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode, dtype) -> None:
    x = random(np.random.default_rng(4), dtype, 2, 12, 3, 5)
    got = run_npu("DepthToSpace", [x], blocksize=2, mode=mode)[0]
    if mode == "DCR":
        split = x.reshape(2, 2, 2, 3, 3, 5).transpose(0, 3, 4, 1, 5, 2)
        np.testing.assert_array_equal(run_npu("SpaceToDepth", [got], blocksize=2)[0], x)
    else:
        split = x.reshape(2, 3, 2, 2, 3, 5).transpose(0, 1, 4, 2, 5, 3)
    np.testing.assert_array_equal(got, split.reshape(2, 3, 6, 10))


@pytest.mark.parametrize("op", ["DepthToSpace", "SpaceToDepth"])
@pytest.mark.parametrize("block", [0, -1, 2**40, 3])
def test_block_sizes_that_do_not_divide_are_refused(op, block) -> None:
    x = np.ones((1, 8, 4, 4), np.float32)
    with pytest.raises(Exception, match=r"blocksize|Blocksize|block"):
        run_npu(op, [x], blocksize=block)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize(
    "shape, target",
    [
        ((3, 1), (3, 4)),
        ((3, 1), (2, 1, 6)),
        ((), (2, 3)),
        ((4,), (1,)),
        ((1, 3), (0, 3)),
        ((2, 1, 2), (2, 300, 1)),
    ],
)
def test_expand(shape, target, dtype: str) -> None:
    x = random(np.random.default_rng(4), dtype, *shape)
    expected = (
        x * np.ones(target, dtype_of(dtype)) if dtype != "bool" else x & np.ones(target, bool)
    )
    assert_close(run_npu("Expand", [x, ints(*target)])[0], expected, dtype)


SLICES = [
    # starts, ends, axes, steps
    ((1,), (3,), (0,), (1,)),
    ((0, 1), (2, INT64_MAX), None, None),
    ((-3,), (-1,), (-1,), None),
    ((INT64_MAX,), (INT64_MIN,), (1,), (-1,)),
    ((-1, 4), (INT64_MIN, 0), (2, 0), (-2, -1)),
    ((3,), (1,), (0,), (1,)),
    ((0,), (100,), (1,), (INT64_MAX,)),
    ((100,), (-100,), (1,), (INT64_MIN,)),
    ((-100, -100), (100, 100), (0, 2), (2, 3)),
    ((), (), (), ()),
]


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_slice(dtype: str, index) -> None:
    rng = np.random.default_rng(5)
    for starts, ends, axes, steps in SLICES:
        if index is np.int32 and any(abs(v) > 2**31 - 1 for v in [*starts, *ends, *(steps or ())]):
            continue
        x = random(rng, dtype, 5, 6, 7)
        slices = [slice(None)] * 3
        for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
            slices[axes[i] if axes else i] = slice(start, end, steps[i] if steps else 1)
        optional = [None if v is None else np.array(v, index) for v in (axes, steps)]
        inputs = [x, np.array(starts, index), np.array(ends, index), *optional]
        while inputs[-1] is None:
            inputs.pop()
        expected = x[tuple(slices)]
        assert_close(run_npu("Slice", inputs)[0], expected, dtype)
    if dtype == "bfloat16":
        return  # not a type of the older version
    legacy = run_npu("Slice", [x], opset=9, starts=[1, 0], ends=[-1, 2], axes=[0, 2])[0]
    assert_close(legacy, x[1:-1, :, 0:2], dtype)


def test_slices_backwards_from_before_the_first_element_begin_at_it() -> None:
    # ONNX clamps such a start to 0, NumPy to -1.
    for size in (0, 1, 3):
        x = np.arange(size, dtype=np.float32)
        for start, end in itertools.product(
            (INT64_MIN, -5, -4, -2, -1, 0, 2), (INT64_MIN, -5, 0, 1)
        ):
            for step in (INT64_MIN, -2, -1):
                expected = x[max(start, -size) : end : step]
                sliced = run_npu("Slice", [x, ints(start), ints(end), ints(0), ints(step)])[0]
                assert_close(sliced, expected, "float32")


@pytest.mark.parametrize("end", [2**31 - 1, 2**63 - 1])
def test_slices_backwards_to_the_largest_integer_include_the_first_element(end: int) -> None:
    """As onnxruntime takes it, whatever the direction."""
    x = random(np.random.default_rng(3), "float32", 5, 2)
    inputs = [x, *(np.array([v], np.int64) for v in (3, end, 0, -2))]
    assert_close(run_npu("Slice", inputs)[0], run_cpu("Slice", inputs)[0], "float32")
    np.testing.assert_array_equal(run_npu("Slice", inputs)[0], x[3::-2])


def test_bad_slices_are_errors() -> None:
    x = np.zeros((2, 3), np.float32)
    node = Node("Slice", [x, ints(0), ints(1), ints(0), ints(1)])
    for starts, ends, axes, steps in [
        ((0,), (1,), (2,), (1,)),
        ((0,), (1,), (0,), (0,)),
        ((0, 0), (1, 1), (0, -2), (1, 1)),
        ((0,), (1, 2), (0,), (1,)),
        ((0,) * 3, (1,) * 3, (0, 1, 1), (1,) * 3),
    ]:
        with pytest.raises(Exception, match=r"\[Slice\] expected"):
            node(x, ints(*starts), ints(*ends), ints(*axes), ints(*steps))


@pytest.mark.parametrize("dtype", SIZES)
def test_concat(dtype: str) -> None:
    rng = np.random.default_rng(6)
    for axis, shapes in [
        (0, [(2, 3), (1, 3)]),
        (1, [(2, 3), (2, 0), (2, 5)]),
        (-2, [(2, 1, 4, 8), (2, 1, 1, 8)]),
        (2, [(2, 3, 700), (2, 3, 1), (2, 3, 33)]),
        (0, [(4,)]),
        (1, [(0, 2), (0, 3)]),
    ]:
        inputs = [random(rng, dtype, *shape) for shape in shapes]
        got = run_npu("Concat", inputs, axis=axis)[0]
        assert_close(got, np.concatenate(inputs, axis), dtype)


def test_concat_of_mismatched_shapes_is_an_error() -> None:
    node = Node("Concat", [np.zeros((2, 3), np.float32)] * 2, axis=0)
    for shape in [(2, 4), (2,), (2, 3, 1)]:
        with pytest.raises(Exception, match=r"\[Concat\] expected shapes that agree"):
            node(np.zeros((2, 3), np.float32), np.zeros(shape, np.float32))


@pytest.mark.parametrize("dtype", SIZES)
def test_split(dtype: str) -> None:
    x = random(np.random.default_rng(7), dtype, 3, 7, 2)
    parts = run_npu("Split", [x, ints(2, 0, 5)], 3, axis=1)
    for got, expected in zip(parts, np.split(x, [2, 2], 1), strict=True):
        assert_close(got, expected, dtype)
    for got, expected in zip(
        run_npu("Split", [x], 3, axis=1, num_outputs=3),
        (x[:, :3], x[:, 3:6], x[:, 6:]),
        strict=True,
    ):
        assert_close(got, expected, dtype)
    only_last = run_npu("Split", [x, ints(1, 6)], ["", "y"], axis=-2)
    assert_close(only_last[0], x[:, 1:], dtype)
    if dtype == "bfloat16":
        return  # not a type of the older version
    halves = run_npu("Split", [x], 2, axis=0, opset=11, split=[1, 2])
    assert_close(halves[1], x[1:], dtype)


def test_bad_splits_are_errors() -> None:
    x = np.zeros((6,), np.float32)
    node = Node("Split", [x, ints(1)], 2)
    for sizes in [(1, 1), (7, -1), (6,), (2, 2, 2), (INT64_MAX, INT64_MAX)]:
        with pytest.raises(Exception, match=r"\[Split\] expected"):
            node(x, ints(*sizes))


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize(
    "shape, repeats",
    [
        ((2, 3), (2, 2)),
        ((2, 3), (1, 300)),
        ((3, 2, 2), (2, 1, 1)),
        ((2, 1, 3), (1, 4, 1)),
        ((2,), (0,)),
        ((), ()),
        ((0, 2), (3, 3)),
    ],
)
def test_tile(shape, repeats, dtype: str) -> None:
    x = random(np.random.default_rng(8), dtype, *shape)
    assert_close(run_npu("Tile", [x, np.array(repeats, np.int64)])[0], np.tile(x, repeats), dtype)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode: str, dtype: str) -> None:
    rng = np.random.default_rng(9)
    for shape, pads in [
        ((4, 5), ((1, 2), (3, 0))),
        ((4, 5), ((0, 0), (2, 4))),
        ((4, 5), ((3, 1), (0, 0))),
        ((2, 3, 2), ((0, 1), (2, 2), (1, 0))),
        ((6,), ((0, 0),)),
    ]:
        x = random(rng, dtype, *shape)
        value = random(rng, dtype)
        extra = {"constant_values": value} if mode == "constant" else {}
        flat = ints(*(p[0] for p in pads), *(p[1] for p in pads))
        got = run_npu("Pad", [x, flat, value], mode=mode)[0]
        assert_close(got, np.pad(x, pads, mode, **extra), dtype)
    x = random(rng, dtype, 4, 5)
    got = run_npu("Pad", [x, ints(1, -2), None, ints(-1)], mode=mode)[0]
    expected = np.pad(x[:, :-2], ((0, 0), (1, 0)), mode)
    assert_close(got, expected, dtype)


@pytest.mark.parametrize("shape", [(-1, 4), (-2, -3), (0, -1)])
def test_expand_to_a_negative_size_is_an_error(shape: tuple[int, int]) -> None:
    with pytest.raises(Exception, match=r"\[Expand\] expected dimensions >= 0, got shape \["):
        run_npu("Expand", [np.ones((1, 1), np.float32), ints(*shape)])


@pytest.mark.parametrize("pads", [(-2, 1), (-2, 4), (-3, 2), (3, -2), (1, -3), (-1, -1), (-2, -2)])
def test_wrap_pad_after_cropping_by_negative_pads(pads: tuple[int, int]) -> None:
    x = np.arange(4, dtype=np.float32)
    kept = x[max(0, -pads[0]) : 4 + min(0, pads[1])]
    expected = np.pad(kept, [max(0, n) for n in pads], "wrap") if len(kept) else kept
    got = run_npu("Pad", [x, ints(*pads)], mode="wrap")[0]
    assert_close(got, expected, "float32")
    if len(kept):  # onnxruntime's CPU kernel refuses an empty result
        assert_close(got, run_cpu("Pad", [x, ints(*pads)], mode="wrap")[0], "float32")


@pytest.mark.parametrize("pads", [(-4, 2), (4, -4), (-5, 2)])
def test_wrap_pad_of_no_elements_is_an_error(pads: tuple[int, int]) -> None:
    with pytest.raises(
        Exception, match=r"\[Pad\] expected elements to repeat along axis 0, got none"
    ):
        run_npu("Pad", [np.zeros(4, np.float32), ints(*pads)], mode="wrap")


def test_bad_pads_are_errors() -> None:
    x = np.zeros((2, 3), np.float32)
    node = Node("Pad", [x, ints(0)])
    for pads in [(1, 1), (-3, 0, 0, 0), (INT64_MAX, 0, INT64_MAX, 0), (0, INT64_MIN, 0, 0)]:
        with pytest.raises(Exception, match=r"\[Pad\] expected"):
            node(x, ints(*pads))
    with pytest.raises(Exception, match=r"memory|bytes|address space|elements"):
        node(x, ints(1 << 50, 0, 0, 0))
    reflect = Node("Pad", [x, ints(0)], mode="reflect")
    with pytest.raises(Exception, match=r"\[Pad\] expected elements to repeat"):
        reflect(np.zeros((0, 3), np.float32), ints(1, 0, 0, 0))


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper: int, dtype: str) -> None:
    x = random(np.random.default_rng(10), dtype, 2, 4, 5)
    node = Node("Trilu", [x, np.array(0)], upper=upper)
    for k in (-6, -4, -1, 0, 2, 5, 9, INT64_MIN, INT64_MAX):
        near = int(np.clip(k, -9, 9))
        expected = np.triu(x, near) if upper else np.tril(x, near)
        assert_close(node(x, np.array(k, np.int64))[0], expected, dtype)
    assert_close(run_npu("Trilu", [x], upper=upper)[0], np.triu(x) if upper else np.tril(x), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32", "int64"])
def test_range(dtype: str) -> None:
    kind = np.dtype(dtype)
    node = Node("Range", [np.array(0, kind)] * 3)
    for start, limit, delta in [(0, 10, 1), (5, -5, -3), (3, 3, 1), (0, -1, 1), (2, 100, 7)]:
        got = node(*(np.array(v, kind) for v in (start, limit, delta)))[0]
        assert_close(got, np.arange(start, limit, delta, kind), dtype)
    with pytest.raises(Exception, match=r"\[Range\] expected delta not to be 0"):
        node(*(np.array(v, kind) for v in (0, 1, 0)))


def test_range_exceeding_memory_is_an_error() -> None:
    node = Node("Range", [np.array(0, np.int64)] * 3)
    for start, limit, delta in [(INT64_MIN, INT64_MAX, 1), (0, 1 << 55, 1)]:
        with pytest.raises(Exception, match=r"memory|bytes|elements|fits"):
            node(*(np.array(v, np.int64) for v in (start, limit, delta)))
    got = node(*(np.array(v, np.int64) for v in (INT64_MIN, INT64_MAX, INT64_MAX)))[0]
    np.testing.assert_array_equal(got, [INT64_MIN, -1, INT64_MAX - 1])
    floats = Node("Range", [np.array(0, np.float32)] * 3)
    for values in [(0, np.inf, 1), (np.nan, 1, 1), (0, 1, np.nan)]:
        with pytest.raises(Exception, match=r"\[Range\] expected finite"):
            floats(*(np.array(v, np.float32) for v in values))


@pytest.mark.parametrize("dtype", FIXED_WIDTH)
def test_constant_of_shape(dtype: str) -> None:
    value = onnx.numpy_helper.from_array(np.ones(1, dtype_of(dtype)))
    for shape in [(2, 3), (0, 4), (50000,), ()]:
        got = run_npu("ConstantOfShape", [np.array(shape, np.int64)], value=value)[0]
        assert_close(got, np.ones(shape), dtype)


def test_constant_of_shape_without_a_value_is_zero() -> None:
    assert_close(run_npu("ConstantOfShape", [ints(3)])[0], np.zeros(3), "float32")


def test_absurd_shapes_are_errors() -> None:
    node = Node("ConstantOfShape", [ints(1)])
    for shape in [(-1,), (1 << 62, 1 << 62), (1 << 60,), (1,) * 13]:
        with pytest.raises(Exception, match=r"expected|memory|bytes"):
            node(ints(*shape))
    assert node(ints(2))[0].shape == (2,)


@pytest.mark.parametrize("dtype", FIXED_WIDTH)
def test_shape_and_size(dtype: str) -> None:
    x = random(np.random.default_rng(11), dtype, 2, 0, 5)
    assert_close(run_npu("Shape", [x])[0], np.array([2, 0, 5]), "int64")
    assert_close(run_npu("Shape", [x], start=-2)[0], np.array([0, 5]), "int64")
    assert_close(run_npu("Shape", [x], start=1, end=-1)[0], np.array([0]), "int64")
    assert_close(run_npu("Shape", [x], start=2, end=1)[0], np.array([]), "int64")
    assert_close(run_npu("Size", [x])[0], np.array(0), "int64")


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64", "bool"])
@pytest.mark.parametrize("index", ["int32", "int64", "float32"])
def test_one_hot(index: str, dtype: str) -> None:
    rng = np.random.default_rng(12)
    values = random(rng, dtype, 2)
    indices = np.array([[0, 2, -1], [-4, 4, 3]], index)  # depth 4: 4 is outside
    for axis in (-1, 0, 1):
        got = run_npu("OneHot", [indices, np.array(4, np.int64), values], axis=axis)[0]
        hot = np.arange(4) == np.where(indices < 0, indices + 4, indices)[..., None]
        expected = np.moveaxis(np.where(hot, values[1], values[0]), -1, axis)
        assert_close(got, expected, dtype)


def test_one_hot_of_hostile_indices_sets_no_element() -> None:
    values = np.array([0, 1], np.float32)
    node = Node("OneHot", [np.zeros(1, np.float32), ints(1), values])
    indices = np.array([np.nan, np.inf, -np.inf, -0.5, 1e30, -3.5], np.float32)
    expected = np.zeros((6, 3))
    expected[3, 0] = 1  # -0.5 is truncated to 0
    np.testing.assert_array_equal(node(indices, ints(3), values)[0], expected)
    wide = Node("OneHot", [ints(0), ints(1), values])
    np.testing.assert_array_equal(
        wide(ints(INT64_MIN, INT64_MAX, 1), ints(2), values)[0], [[0, 0], [0, 0], [0, 1]]
    )
    assert wide(ints(1), ints(0), values)[0].shape == (1, 0)
    with pytest.raises(Exception, match=r"expected|memory|bytes"):
        wide(ints(1), ints(-1), values)


def test_cast_to_unsupported_type_is_reported() -> None:
    """The assignment record of a node left to the CPU names the type."""
    x = np.zeros(2, np.float32)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)],
        "cast",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [2])],
    )
    session = make_session(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=IR_VERSION)
    )
    assert npu_nodes(session) == []
    assert "type 8 is not implemented" in onnxruntime_npu.assignment(session)[0]["reason"]
    session.run(None, {"x": x})

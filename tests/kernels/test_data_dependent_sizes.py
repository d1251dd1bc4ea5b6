"""NonZero, Compress and Unique, whose outputs' sizes depend on the data, against NumPy."""

from __future__ import annotations

import numpy as np
import onnxruntime
import onnxruntime_npu
import pytest
from onnx import TensorProto, helper
from onnx_nodes import (
    FIXED_WIDTH,
    FLOATS,
    IR_VERSION,
    Node,
    dtype_of,
    make_session,
    npu_nodes,
    random,
    run_npu,
)

SHAPES = [
    (),
    (7,),
    (0,),
    (3, 0, 2),
    (4, 5),
    (2, 3, 4, 5),
    (300, 257),
]  # the last is counted in parts


@pytest.mark.parametrize("dtype", FIXED_WIDTH)
def test_nonzero(dtype) -> None:
    node = Node("NonZero", [np.zeros(1, dtype_of(dtype))])
    for seed, shape in enumerate(SHAPES):
        x = random(np.random.default_rng(seed), dtype, *shape, low=0, high=2)
        x = np.floor(x.astype(np.float64)).astype(x.dtype)
        expected = np.stack(np.nonzero(x)) if shape else np.zeros((0, int(x != 0)), np.int64)
        np.testing.assert_array_equal(node(x)[0], expected)
    assert node(np.zeros((50, 1000), dtype_of(dtype)))[0].shape == (2, 0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_nonzero_of_special_values(dtype) -> None:
    x = np.array([0.0, -0.0, np.nan, np.inf, np.finfo(np.float32).tiny], dtype_of(dtype))
    assert run_npu("NonZero", [x])[0].tolist() == [[2, 3, *([4] if x[4] != 0 else [])]]


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64", "bool"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -3])
def test_compress(axis, dtype) -> None:
    rng = np.random.default_rng(1)
    x = random(rng, dtype, 4, 5, 6)
    options = {} if axis is None else {"axis": axis}
    node = Node("Compress", [x, np.zeros(1, bool)], **options)
    length = x.size if axis is None else x.shape[axis]
    for given in (length, length - 2, 1, 0):  # what the condition does not reach is left out
        condition = rng.random(given) < 0.5
        expected = np.compress(condition, x, axis)
        np.testing.assert_array_equal(node(x, condition)[0], expected)
    longer = np.ones(length + 9, bool)
    np.testing.assert_array_equal(node(x, longer)[0], x if axis is not None else x.ravel())
    empty = np.zeros((4, 0, 6), x.dtype)
    shapes = {None: (0,), 0: (1, 0, 6), 1: (4, 0, 6), 2: (4, 0, 1), -1: (4, 0, 1), -3: (1, 0, 6)}
    assert node(empty, np.ones(1, bool))[0].shape == shapes[axis]


def test_compress_takes_a_condition_of_rank_one_only() -> None:
    x = np.ones((2, 3), np.float32)
    node = Node("Compress", [x, np.zeros(1, bool)], axis=0)
    with pytest.raises(Exception, match=r"\[Compress\] expected a condition of rank 1"):
        node(x, np.ones((1, 2), bool))
    assert node(x, np.array([False, True]))[0].shape == (1, 3)
    with pytest.raises(Exception, match="axis"):
        run_npu("Compress", [x, np.ones(2, bool)], axis=5)


def appearance(x: np.ndarray, axis: int | None) -> list[np.ndarray]:
    """np.unique's results in the order in which values first appear."""
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    order = np.argsort(first)
    number = np.argsort(order)
    along = 0 if axis is None else axis
    return [values.take(order, along), first[order], number[inverse], counts[order]]


WITHOUT_BFLOAT16 = [dtype for dtype in FIXED_WIDTH if dtype != "bfloat16"]


@pytest.mark.parametrize("dtype", WITHOUT_BFLOAT16)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_unique(axis, dtype) -> None:
    options = {} if axis is None else {"axis": axis}
    example = np.zeros((1, 1, 1), dtype_of(dtype))
    by_value = Node("Unique", [example], 4, **options)
    by_appearance = Node("Unique", [example], 4, sorted=0, **options)
    for seed, shape in enumerate([(6, 5, 2), (40, 1, 1), (1, 30, 3), (3, 4, 0)]):
        if axis is not None and 0 in shape:
            continue
        x = random(np.random.default_rng(seed), dtype, *shape, low=0, high=3)
        x = np.floor(x).astype(x.dtype)
        expected = list(np.unique(x, True, True, True, axis=axis))
        for node, results in ((by_value, expected), (by_appearance, appearance(x, axis))):
            values, *numbers = node(x)
            assert values.dtype == x.dtype
            np.testing.assert_array_equal(values, results[0])
            for got, want in zip(numbers, results[1:], strict=True):
                np.testing.assert_array_equal(got, want.ravel())


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_unique_takes_all_nan_as_one_value_after_all_others(dtype) -> None:
    x = np.array([np.nan, 2, -0.0, np.nan, 0.0, np.inf], dtype_of(dtype))
    values, first, inverse, counts = run_npu("Unique", [x], 4)
    np.testing.assert_array_equal(values.astype(np.float64), [0, 2, np.inf, np.nan])
    assert first.tolist() == [2, 1, 5, 0] and inverse.tolist() == [3, 1, 0, 3, 0, 2]
    assert counts.tolist() == [2, 1, 1, 2]


def test_unused_outputs_of_unique() -> None:
    x = np.array([3, 1, 3], np.int32)
    assert run_npu("Unique", [x])[0].tolist() == [1, 3]
    values, counts = run_npu("Unique", [x], ["y", "", "", "c"])
    assert values.tolist() == [1, 3] and counts.tolist() == [1, 2]


def chain() -> bytes:
    """y = the positions of what Gather takes from x."""
    nodes = [
        helper.make_node("Gather", ["x", "i"], ["g"]),
        helper.make_node("NonZero", ["g"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("i", TensorProto.INT64, ["m"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION).SerializeToString()


def test_failure_before_the_wait_is_reported_and_the_session_goes_on() -> None:
    session = make_session(chain())
    assert npu_nodes(session) == ["Gather", "NonZero"]
    x = np.array([0, 5, 7], np.float32)
    for _ in range(3):
        with pytest.raises(Exception, match=r"\[Gather\]"):
            session.run(None, {"x": x, "i": np.array([99])})
        assert session.run(None, {"x": x, "i": np.array([0, 2, 0, 1])})[0].tolist() == [[1, 3]]


def test_captured_run_refuses_to_wait() -> None:
    x = {"x": np.array([0, 5], np.float32), "i": np.array([1, 1])}
    captured = onnxruntime.InferenceSession(
        chain(), providers=[("NPUExecutionProvider", {"enable_npu_graph": "1"})]
    )
    binding = captured.io_binding()
    for name, value in x.items():
        binding.bind_ortvalue_input(name, onnxruntime_npu.ortvalue_from_numpy(value))
    binding.bind_output("y", "npu", 0)
    for _ in range(2):
        with pytest.raises(
            Exception, match=r"\[NonZero\] operation not permitted when stream is captur"
        ):
            captured.run_with_iobinding(binding)
    assert make_session(chain()).run(None, x)[0].tolist() == [[0, 1]]

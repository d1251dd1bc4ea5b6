"""Gathers and scatters: every element size, negative and hostile indices, in place."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_nodes import (
    FIXED_WIDTH,
    FLOATS,
    INTS,
    IR_VERSION,
    Node,
    assert_close,
    dtype_of,
    make_session,
    npu_nodes,
    random,
    run_npu,
)

SIZES = ["int8", "bfloat16", "float32", "int64", "bool"]
INDICES = [np.int32, np.int64]
HOSTILE = [np.iinfo(np.int64).min, -(2**40), -6, 5, 2**31, np.iinfo(np.int64).max]


@pytest.mark.parametrize("dtype", FIXED_WIDTH)
@pytest.mark.parametrize("index", INDICES)
def test_gather(dtype: str, index) -> None:
    rng = np.random.default_rng(1)
    x = random(rng, dtype, 4, 5, 6)
    for axis in (0, 1, -1):
        n = x.shape[axis]
        node = Node("Gather", [x, np.zeros(1, index)], axis=axis)
        for shape in [(), (3,), (2, 0), (2, 2, 2)]:
            indices = rng.integers(-n, n, shape).astype(index)
            assert_close(node(x, indices)[0], np.take(x, indices, axis), dtype)


def test_gather_of_many_rows_runs_in_parallel() -> None:
    rng = np.random.default_rng(2)
    table = random(rng, "float32", 1000, 257)
    indices = rng.integers(-1000, 1000, (7, 300))
    assert_close(run_npu("Gather", [table, indices])[0], table[indices], "float32")


@pytest.mark.parametrize("bad", HOSTILE)
def test_gather_checks_every_index(bad: int) -> None:
    x = np.arange(5, dtype=np.float32)
    node = Node("Gather", [x, np.zeros(1, np.int64)])
    indices = np.zeros(70_000, np.int64)
    indices[69_999] = bad
    message = rf"\[Gather\] expected an index in \[-5, 5\), got {bad} at 69999"
    with pytest.raises(Exception, match=message):
        node(x, indices)
    np.testing.assert_array_equal(node(x, np.array([-5, 4]))[0], [0, 4])  # the device stays usable
    with pytest.raises(Exception, match=r"\[Gather\] expected an index"):
        node(np.zeros((0, 2), np.float32), np.zeros(1, np.int64))


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("index", INDICES)
def test_gather_elements(dtype: str, index) -> None:
    rng = np.random.default_rng(3)
    x = random(rng, dtype, 4, 5, 6)
    for axis, shape in [(0, (7, 5, 6)), (1, (4, 2, 6)), (-1, (4, 5, 9)), (1, (4, 0, 6))]:
        n = x.shape[axis]
        indices = rng.integers(-n, n, shape).astype(index)
        got = run_npu("GatherElements", [x, indices], axis=axis)[0]
        assert_close(got, np.take_along_axis(x, indices % n, axis), dtype)
    part = rng.integers(0, 5, (2, 3, 4)).astype(index)  # smaller than the data in other axes too
    got = run_npu("GatherElements", [x, part], axis=1)[0]
    assert_close(got, np.take_along_axis(x[:2, :, :4], part, 1), dtype)


@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("index", INDICES)
def test_scatter_elements(dtype: str, index) -> None:
    rng = np.random.default_rng(4)
    x = random(rng, dtype, 4, 5, 6)
    for axis in (0, 1, -1):
        n = x.shape[axis]
        order = np.argsort(rng.random(x.shape), axis)  # no duplicate positions
        order = np.where(rng.random(order.shape) < 0.5, order - n, order).astype(index)
        updates = random(rng, dtype, *x.shape)
        expected = x.copy()
        np.put_along_axis(expected, order % n, updates, axis)
        got = run_npu("ScatterElements", [x, order, updates], axis=axis)[0]
        assert_close(got, expected, dtype)


@pytest.mark.parametrize("bad", HOSTILE)
@pytest.mark.parametrize("op", ["GatherElements", "ScatterElements"])
def test_gather_and_scatter_elements_check_every_index(op: str, bad: int) -> None:
    x = np.arange(5, dtype=np.float32)
    indices = np.array([0, 1, bad])
    inputs = [x, indices] if op == "GatherElements" else [x, indices, np.zeros(3, np.float32)]
    node = Node(op, inputs)
    with pytest.raises(
        Exception, match=rf"\[{op}\] expected an index in \[-5, 5\), got {bad} at 2"
    ):
        node(*inputs)


def test_gather_and_scatter_elements_check_shapes() -> None:
    x = np.zeros((2, 3), np.float32)
    gather = Node("GatherElements", [x, np.zeros((1, 1), np.int64)], axis=1)
    for shape in [(3, 1), (2,), (2, 3, 1)]:
        with pytest.raises(Exception, match=r"\[GatherElements\] expected indices"):
            gather(x, np.zeros(shape, np.int64))
    scatter = Node("ScatterElements", [x, np.zeros((1, 1), np.int64), x])
    with pytest.raises(Exception, match=r"\[ScatterElements\] expected updates of the indices"):
        scatter(x, np.zeros((1, 1), np.int64), x)


@pytest.mark.parametrize("dtype", SIZES)
def test_gather_nd(dtype: str) -> None:
    rng = np.random.default_rng(5)
    x = random(rng, dtype, 4, 5, 6)
    for depth in (1, 2, 3):
        indices = np.stack([rng.integers(-n, n, (2, 7)) for n in x.shape[:depth]], -1)
        expected = x[tuple(np.moveaxis(indices, -1, 0))]
        assert_close(run_npu("GatherND", [x, indices])[0], expected, dtype)
    batched = rng.integers(-5, 5, (4, 3, 1))
    expected = np.stack([x[b][batched[b, :, 0]] for b in range(4)])
    assert_close(run_npu("GatherND", [x, batched], batch_dims=1)[0], expected, dtype)
    nothing = np.zeros((3, 0), np.int64)  # empty tuples name the whole tensor
    assert_close(run_npu("GatherND", [x, nothing])[0], np.stack([x] * 3), dtype)


@pytest.mark.parametrize("dtype", SIZES)
def test_scatter_nd(dtype: str) -> None:
    rng = np.random.default_rng(6)
    x = random(rng, dtype, 4, 5, 6)
    for depth, updates_shape in [(1, (3, 5, 6)), (2, (3, 6)), (3, (3,))]:
        rows = rng.permutation(4)[:3]
        indices = np.stack([rows, *(rng.integers(-n, n, 3) for n in x.shape[1:depth])], -1)
        updates = random(rng, dtype, *updates_shape)
        expected = x.copy()
        expected[tuple(indices.T)] = updates
        assert_close(run_npu("ScatterND", [x, indices, updates])[0], expected, dtype)
    twice = run_npu("ScatterND", [x, np.zeros((2, 1), np.int64), x[2:]])[0]
    np.testing.assert_array_equal(twice[0], x[3])  # the later update wins


COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS])
@pytest.mark.parametrize("reduction", COMBINE)
def test_scatter_reduction_accumulates_repeated_indices(reduction: str, dtype: str) -> None:
    rng = np.random.default_rng(8)
    x = np.round(random(rng, dtype, 6, 5).astype(np.float64)).astype(dtype_of(dtype))
    rows = np.array([[1], [4], [1], [-2]])
    updates = np.round(random(rng, dtype, 4, 5).astype(np.float64)).astype(dtype_of(dtype))
    expected = x.astype(np.float64)
    for row, update in zip(rows[:, 0], updates.astype(np.float64), strict=True):
        expected[row] = COMBINE[reduction](expected[row], update)
    got = run_npu("ScatterND", [x, rows, updates], reduction=reduction)[0]
    assert_close(got, expected.astype(dtype_of(dtype)), dtype)  # small integers: exact
    indices = np.broadcast_to(rows, (4, 5)).astype(np.int64)
    got = run_npu("ScatterElements", [x, indices, updates], axis=0, reduction=reduction, opset=18)[
        0
    ]
    assert_close(got, expected.astype(dtype_of(dtype)), dtype)


@pytest.mark.parametrize("bad", HOSTILE)
@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
def test_gather_nd_and_scatter_nd_check_every_index(op: str, bad: int) -> None:
    x = np.zeros((3, 5), np.float32)
    indices = np.array([[0, 0], [2, 4], [1, bad]])
    inputs = [x, indices] if op == "GatherND" else [x, indices, np.zeros(3, np.float32)]
    node = Node(op, inputs)
    with pytest.raises(
        Exception, match=rf"\[{op}\] expected an index in \[-5, 5\), got {bad} at 5"
    ):
        node(*inputs)


def test_gather_nd_and_scatter_nd_check_shapes() -> None:
    x = np.zeros((3, 5), np.float32)
    scatter = Node("ScatterND", [x, np.zeros((1, 1), np.int64), x])
    with pytest.raises(Exception, match=r"\[ScatterND\] expected updates of shape \[1, 5\]"):
        scatter(x, np.zeros((1, 1), np.int64), x)
    with pytest.raises(Exception, match=r"\[ScatterND\] expected index tuples of at most 2"):
        scatter(x, np.zeros((1, 3), np.int64), np.zeros(1, np.float32))
    gather = Node("GatherND", [x, np.zeros((1, 1), np.int64)], batch_dims=1)
    with pytest.raises(Exception, match=r"\[GatherND\] expected equal batch dimensions"):
        gather(x, np.zeros((2, 1), np.int64))


@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_scatter_does_not_modify_shared_data(op: str) -> None:
    """In place if this is the last use of the data, otherwise on a copy."""
    shape = [4, 3]
    index_shape = [2, 1] if op == "ScatterND" else [2, 3]
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node(op, ["a", "i", "u"], ["s"]),
        helper.make_node("Neg", ["a"], ["n"]),
        helper.make_node("Exp", ["s"], ["e"]),
        helper.make_node(op, ["e", "i", "u"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "scatters",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("u", TensorProto.FLOAT, [2, 3]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("y", "n")],
        [onnx.numpy_helper.from_array(np.broadcast_to([[1], [3]], index_shape), "i")],
    )
    session = make_session(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=IR_VERSION)
    )
    assert len(npu_nodes(session)) == len(nodes)
    rng = np.random.default_rng(7)
    x, u = random(rng, "float32", *shape), random(rng, "float32", 2, 3)
    y, n = session.run(None, {"x": x, "u": u})
    expected = np.exp(np.abs(x))
    expected[[1, 3]] = u
    np.testing.assert_array_equal(n, -np.abs(x))
    np.testing.assert_allclose(y, expected, rtol=1e-6)

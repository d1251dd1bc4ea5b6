"""RotaryEmbedding and TensorScatter, which decoders of opset 23 and 24 have, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import FIXED_WIDTH, Node, assert_close, random, run_npu


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: int) -> np.ndarray:
    """x [B, N, S, D] with its first columns rotated by tables [B, S, R / 2]."""
    y = x.astype(np.float64).copy()
    cos, sin = (table.astype(np.float64)[:, None] for table in (cos, sin))
    half = cos.shape[-1]
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if interleaved
        else (slice(0, half), slice(half, 2 * half))
    )
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return y


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("partial", [0, 6])
@pytest.mark.parametrize("joined", [False, True])
def test_rotary_embedding(joined, partial, interleaved, dtype) -> None:
    rng = np.random.default_rng(1)
    x = random(rng, dtype, 2, 3, 5, 8)
    half = (partial or 8) // 2
    cos, sin = (random(rng, dtype, 11, half, low=-1, high=1) for _ in "cs")
    positions = rng.integers(-11, 11, (2, 5))  # from the end, too, as in NumPy
    options = {"interleaved": interleaved, "rotary_embedding_dim": partial, "opset": 23}
    given = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(2, 5, 24) if joined else x
    if joined:
        options["num_heads"] = 3
    expected = rotated(x, cos[positions], sin[positions], interleaved)
    expected = expected.transpose(0, 2, 1, 3).reshape(2, 5, 24) if joined else expected
    got = run_npu("RotaryEmbedding", [given, cos, sin, positions], **options)[0]
    near = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3.2e-2}[dtype]  # a rounding of up to 8
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=near)
    tables = [cos[positions], sin[positions]]
    again = run_npu("RotaryEmbedding", [given, *tables], **options)[0]
    np.testing.assert_array_equal(again.astype(np.float64), got.astype(np.float64))


@pytest.mark.parametrize("joined", [False, True])
def test_tables_that_entries_of_the_batch_share(joined) -> None:
    """As torch.onnx writes them for a decoder of one row of positions; the CPU provider refuses."""
    rng = np.random.default_rng(4)
    x = random(rng, "float32", *((3, 5, 16) if joined else (3, 2, 5, 8)))
    tables = [random(rng, "float32", 1, 5, 4) for _ in "cs"]
    options = {"opset": 23} | ({"num_heads": 2} if joined else {})
    (got,) = run_npu("RotaryEmbedding", [x, *tables], **options)
    (wanted,) = run_npu("RotaryEmbedding", [x, *(t.repeat(3, 0) for t in tables)], **options)
    np.testing.assert_array_equal(got, wanted)


def test_hostile_arguments_of_rotary_embedding_are_refused() -> None:
    x, table = np.ones((1, 2, 3, 4), np.float32), np.ones((5, 2), np.float32)
    node = Node("RotaryEmbedding", [x, table, table, np.zeros((1, 3), np.int64)], opset=23)
    for position in (5, -6, 2**40, -(2**62)):
        with pytest.raises(Exception, match=r"\[RotaryEmbedding\]"):
            node(x, table, table, np.array([[0, position, 1]]))
    with pytest.raises(Exception, match=r"tables \[positions, 2\]"):
        node(x, table[:, :1], table[:, :1], np.zeros((1, 3), np.int64))
    with pytest.raises(Exception, match="position_ids of shape"):
        node(x, table, table, np.zeros((1, 4), np.int64))
    with pytest.raises(Exception, match="rotary_embedding_dim"):
        run_npu("RotaryEmbedding", [x, table, table], opset=23, rotary_embedding_dim=6)
    assert node(x, table, table, np.zeros((1, 3), np.int64))[0].shape == x.shape


@pytest.mark.parametrize("dtype", FIXED_WIDTH)
@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [-2, 1, -1])
def test_tensor_scatter(axis, mode, dtype) -> None:
    rng = np.random.default_rng(2)
    past = random(rng, dtype, 3, 4, 7, 5)
    shape = list(past.shape)
    shape[axis] = 2
    update = random(rng, dtype, *shape)
    capacity = past.shape[axis]
    first = np.array([0, capacity - 2, 1] if mode == "linear" else [capacity - 1, 3 * capacity, 1])
    for indices in (first, None):
        got = run_npu("TensorScatter", [past, update, indices], opset=24, axis=axis, mode=mode)[0]
        expected = past.copy()
        for b in range(3):
            for row in range(2):
                place = ((0 if indices is None else indices[b]) + row) % capacity
                np.moveaxis(expected[b], axis % 4 - 1, 0)[place] = np.moveaxis(
                    update[b], axis % 4 - 1, 0
                )[row]
        assert_close(got, expected, dtype)


def test_tensor_scatter_writes_nothing_outside_the_cache() -> None:
    past, update = np.zeros((2, 1, 4, 3), np.float32), np.ones((2, 1, 2, 3), np.float32)
    node = Node("TensorScatter", [past, update, np.zeros(2, np.int64)], opset=24)
    for place in (3, -1, 2**62, -(2**62)):
        with pytest.raises(
            Exception, match=r"\[TensorScatter\] expected write_indices from 0 to 2"
        ):
            node(past, update, np.array([0, place]))
    with pytest.raises(Exception, match="an update like past_cache"):
        node(past, np.ones((2, 1, 5, 3), np.float32), np.zeros(2, np.int64))
    with pytest.raises(Exception, match="axis"):
        run_npu("TensorScatter", [past, update], opset=24, axis=0)
    assert node(past, update, np.array([0, 2]))[0].sum() == update.sum()

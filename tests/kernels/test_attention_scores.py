"""The scores that Attention returns on request, at every stage, against NumPy in double."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx_nodes import Node, random, run_npu

SCALED, CAPPED, BIASED, WEIGHTS = range(4)
UNIT = {"float32": 2.0**-20, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # of sums of 8 products


def scores(q, k, stage: int, *, softcap=0.0, mask=None, visible=None) -> np.ndarray:
    """[B, N, Sq, T] of q [B, N, Sq, D] and k [B, Nkv, T, D]; `visible` broadcasts to it."""
    k = np.repeat(k.astype(np.float64), q.shape[1] // k.shape[1], axis=1)
    s = q.astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    if stage == SCALED:
        return s
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if stage == CAPPED:
        return s
    if mask is not None:
        s = s + mask.astype(np.float64)
    s = np.where(True if visible is None else visible, s, -np.inf)
    if stage == BIASED:
        return s
    with np.errstate(invalid="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True))
        return np.nan_to_num(e / e.sum(-1, keepdims=True))  # a row that sees nothing is 0


def assert_scores(got: np.ndarray, expected: np.ndarray, dtype: str) -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(
        got.astype(np.float64), expected, rtol=UNIT[dtype], atol=4 * UNIT[dtype]
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("joined", [False, True])
def test_scores_with_a_cache_a_softcap_and_a_mask(joined, stage, dtype) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (random(rng, dtype, 2, heads, 3, 8, low=-2, high=2) for heads in (4, 2, 2))
    past = [random(rng, dtype, 2, 2, 5, 8, low=-2, high=2) for _ in "kv"]
    mask = random(rng, dtype, 2, 1, 3, 8, low=-1, high=1)
    how = {"qk_matmul_output_mode": stage, "softcap": 1.5, "is_causal": 1, "opset": 23}
    given = [q, k, v]
    if joined:
        given = [x.transpose(0, 2, 1, 3).reshape(2, 3, -1) for x in given]
        how |= {"q_num_heads": 4, "kv_num_heads": 2}
    y, _, _, got = run_npu("Attention", [*given, mask, *past], 4, **how)
    keys = np.concatenate([past[0], k], 2)
    visible = np.arange(8) <= np.arange(3)[:, None] + 5
    expected = scores(q, keys, stage, softcap=1.5, mask=mask, visible=visible)
    assert_scores(got, expected, dtype)
    again = run_npu("Attention", [*given, mask, *past], 3, **how)[0]
    np.testing.assert_array_equal(y.astype(np.float64), again.astype(np.float64))


@pytest.mark.parametrize("stage", [BIASED, WEIGHTS])
def test_scores_of_hidden_keys(stage) -> None:
    """A mask of booleans, one row of which hides everything, and lengths with a causal frontier."""
    rng = np.random.default_rng(2)
    q, k, v = (random(rng, "float32", 2, 2, 4, 8, low=-2, high=2) for _ in "qkv")
    mask = rng.random((2, 1, 4, 4)) < 0.6
    mask[:, :, 2] = False
    how = {"qk_matmul_output_mode": stage, "opset": 24}
    got = run_npu("Attention", [q, k, v, mask], ["y", "", "", "s"], **how)[1]
    assert_scores(got, scores(q, k, stage, visible=mask), "float32")
    lengths = np.array([3, 1])
    inputs = [q, k, v, None, None, None, lengths]
    got = run_npu("Attention", inputs, ["y", "", "", "s"], is_causal=1, **how)[1]
    offset = (lengths - 4)[:, None, None, None]
    visible = np.arange(4) <= np.arange(4)[:, None] + offset
    assert_scores(got, scores(q, k, stage, visible=visible), "float32")


def test_scores_without_queries_keys_or_an_output() -> None:
    q, k = np.ones((1, 2, 0, 4), np.float32), np.ones((1, 2, 3, 4), np.float32)
    node = Node("Attention", [q, k, k], ["y", "", "", "s"], opset=23)
    assert node(q, k, k)[1].shape == (1, 2, 0, 3)
    y, s = node(k, q, q)
    assert s.shape == (1, 2, 3, 0) and not y.any()


def test_an_unknown_stage_is_refused() -> None:
    k = np.ones((1, 2, 3, 4), np.float32)
    for stage in (-1, 4):
        with pytest.raises(Exception, match="qk_matmul_output_mode"):
            run_npu("Attention", [k, k, k], 4, opset=23, qk_matmul_output_mode=stage)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("share", [1.0, 0.75])
def test_a_row_that_finite_numbers_hide_is_a_mean(share, dtype) -> None:
    """By the formula: all its scores are equal. The scores are returned with the mask as it is."""
    rng = np.random.default_rng(3)
    q, k, v = (random(rng, dtype, 1, 2, 3, 8, low=-2, high=2) for _ in "qkv")
    lowest = ml_dtypes.finfo(q.dtype).min
    mask = np.zeros((3, 3), q.dtype)
    mask[1] = lowest * np.array(share, q.dtype)
    mask[2, 0] = -np.inf
    y, _, _, got = run_npu("Attention", [q, k, v, mask], 4, qk_matmul_output_mode=BIASED, opset=23)
    values = v.astype(np.float64)
    weights = scores(q, k, WEIGHTS, mask=mask)
    if dtype != "float16":  # in float32 the lowest numbers stay what they are, whatever is added
        weights[:, :, 1] = 1 / 3
    assert_scores(y, weights @ values, dtype)
    if dtype != "float16":
        np.testing.assert_array_equal(got[:, :, 1], np.broadcast_to(mask[1], (1, 2, 3)))

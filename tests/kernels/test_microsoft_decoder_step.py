"""Attention of one row with a cache in place, channels last, and rows without padding."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import Node, make_model, make_session, npu_nodes, random, run_cpu, run_npu
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, RuntimeException

MICROSOFT = "com.microsoft"
SELF, HEADS = "DecoderMaskedSelfAttention", "DecoderMaskedMultiHeadAttention"
BATCH, COUNT, SIZE, ROWS = 2, 3, 8, 11
HIDDEN = COUNT * SIZE
NEAR = {"float32": 2e-6, "float16": 4e-3}
ERRORS = (Fail, InvalidArgument, RuntimeException)


def attended(q, keys, values, hidden, bias) -> np.ndarray:
    """q [B, N, D], keys and values [B, N, T, D], hidden keys [B, T], bias [1, N, 1, T]."""
    scores = np.einsum("bnd,bntd->bnt", q, keys) / np.sqrt(SIZE) + bias[:, :, 0]
    scores = scores + np.where(hidden[:, None], -10000.0, 0.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bnt,bntd->bnd", weights, values).reshape(len(q), 1, HIDDEN)


def heads(rows: np.ndarray) -> np.ndarray:
    return rows.astype(np.float64).reshape(BATCH, COUNT, SIZE)


def assert_near(got: np.ndarray, wanted: np.ndarray, dtype: str) -> None:
    assert got.shape == wanted.shape and got.dtype == np.dtype(dtype)
    near = NEAR[dtype] * max(1, np.abs(wanted).max())
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=near)


def decoder_step(rng, dtype: str, past: int):
    """What both operators take besides the projection, and the expected cache and mask."""
    cache = random(rng, dtype, 2, BATCH, COUNT, ROWS, SIZE)
    mask = np.ones((BATCH, past + 1), np.int32)
    mask[1, : past // 2] = 0
    bias = random(rng, dtype, 1, COUNT, 1, past + 1)
    return cache, mask, bias, np.array([past], np.int32)


@pytest.mark.parametrize("past", [0, 4, ROWS - 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_self_attention(dtype, past) -> None:
    rng = np.random.default_rng(past)
    cache, mask, bias, length = decoder_step(rng, dtype, past)
    x = random(rng, dtype, BATCH, 1, 10, low=-1, high=1)
    weights = random(rng, dtype, 10, 3 * HIDDEN, low=-1, high=1)
    projection_bias = random(rng, dtype, 3 * HIDDEN, low=-1, high=1)
    given = [x, weights, projection_bias, mask, cache, bias, length]
    options = {"num_heads": COUNT, "past_present_share_buffer": 1, "domain": MICROSOFT}
    for constant in ((), (1,)):
        y, present = run_npu(SELF, given, 2, constant=constant, **options)
        product = x.astype(np.float64) @ weights.astype(np.float64) + projection_bias
        q, k, v = (heads(part) for part in np.split(product, 3, axis=-1))
        full = cache.astype(np.float64)
        full[0, :, :, past], full[1, :, :, past] = k, v
        assert_near(present, full, dtype)
        keys, values = full[:, :, :, : past + 1]
        assert_near(y, attended(q, keys, values, mask == 0, bias.astype(np.float64)), dtype)


@pytest.mark.parametrize("past", [0, 4, ROWS - 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_heads_with_a_cache(dtype, past) -> None:
    rng = np.random.default_rng(past)
    cache, mask, bias, length = decoder_step(rng, dtype, past)
    q, k, v = (random(rng, dtype, BATCH, 1, HIDDEN) for _ in "qkv")
    added = random(rng, dtype, 3 * HIDDEN, low=-1, high=1)
    given = [q, k, v, mask, bias, cache[0], cache[1], length, None, None, added]
    options = {"num_heads": COUNT, "past_present_share_buffer": 1, "domain": MICROSOFT}
    y, keys, values = run_npu(HEADS, given, 3, **options)
    of_q, of_k, of_v = (added.astype(np.float64)[i * HIDDEN : (i + 1) * HIDDEN] for i in range(3))
    full = cache.astype(np.float64)
    full[0, :, :, past], full[1, :, :, past] = heads(k + of_k), heads(v + of_v)
    assert_near(keys, full[0], dtype)
    assert_near(values, full[1], dtype)
    wanted = attended(
        heads(q + of_q), *full[:, :, :, : past + 1], mask == 0, bias.astype(np.float64)
    )
    assert_near(y, wanted, dtype)


def test_keys_of_an_encoder_against_the_cpu() -> None:
    rng = np.random.default_rng(8)
    q = random(rng, "float32", BATCH, 1, HIDDEN)
    k, v = (random(rng, "float32", BATCH, COUNT, 6, SIZE) for _ in "kv")
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)
    options = {"num_heads": COUNT, "domain": MICROSOFT}
    (got,) = run_npu(HEADS, [q, k, v, mask], **options)
    assert_near(got, run_cpu(HEADS, [q, k, v, mask], **options)[0], "float32")


def test_beams_and_growing_caches_are_not_claimed() -> None:
    rng = np.random.default_rng(9)
    cache, mask, bias, length = decoder_step(rng, "float32", 4)
    q, k, v = (random(rng, "float32", BATCH, 1, HIDDEN) for _ in "qkv")
    beams = [np.array([2], np.int32), np.zeros((1, BATCH, ROWS), np.int32)]
    given = [q, k, v, mask, bias, cache[0], cache[1], length]
    for inputs, share in ((given + beams, 1), (given, 0)):
        model = make_model(HEADS, inputs, 3, num_heads=COUNT, past_present_share_buffer=share,
                           domain=MICROSOFT)  # fmt: skip
        assert npu_nodes(make_session(model)) == []


@pytest.mark.parametrize("change, message", [
    ({0: (BATCH, 2, HIDDEN)}, "expected query"),
    ({1: (BATCH, 1, HIDDEN + 1)}, "expected key"),
    ({10: (HIDDEN,)}, "expected bias"),
    ({5: (BATCH, COUNT, ROWS, SIZE + 1)}, "expected past_key"),
    ({7: ROWS}, "expected a past_sequence_length"),
    ({7: -1}, "expected a past_sequence_length"),
    ({3: (BATCH, 2)}, "mask_index"),
])  # fmt: skip
def test_hostile_steps(change, message) -> None:
    cache = np.ones((BATCH, COUNT, ROWS, SIZE), np.float32)
    rows = np.ones((BATCH, 1, HIDDEN), np.float32)
    given = [rows, rows, rows, np.ones((BATCH, 5), np.int32), None, cache, cache,
             np.array([4], np.int32), None, None, np.ones(3 * HIDDEN, np.float32)]  # fmt: skip
    for i, shape in change.items():
        given[i] = np.array([shape], np.int32) if i == 7 else np.ones(shape, given[i].dtype)
    options = {"num_heads": COUNT, "past_present_share_buffer": 1, "domain": MICROSOFT}
    with pytest.raises(ERRORS, match=message):
        Node(HEADS, given, 3, **options)(*given)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("group", [1, 6])
@pytest.mark.parametrize("constant", [(), (1,)])
def test_convolution_with_channels_last(constant, group, dtype) -> None:
    rng = np.random.default_rng(group)
    x = random(rng, dtype, 2, 9, 8, 6, low=-1, high=1)
    w = random(rng, dtype, 6, 6 // group, 3, 3, low=-0.5, high=0.5)
    b, z = random(rng, dtype, 6), random(rng, dtype, 2, 5, 4, 6)
    options = {"pads": [1] * 4, "strides": [2, 2], "group": group}
    got = run_npu("NhwcFusedConv", [x, w, b, z], constant=constant, activation="Relu",
                  domain=MICROSOFT, **options)[0]  # fmt: skip
    planes = np.moveaxis(x, -1, 1).astype(np.float32)
    plain = run_cpu("Conv", [planes, w.astype(np.float32), b.astype(np.float32)], **options)[0]
    wanted = np.maximum(np.moveaxis(plain, 1, -1) + z.astype(np.float32), 0)
    assert_near(got, wanted, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_padding_is_removed_and_restored(dtype) -> None:
    x = random(np.random.default_rng(1), dtype, 4, 5, 3)
    counts = np.array([3, 0, 5, 1], np.int32)
    y, offsets, ends, longest = run_npu("RemovePadding", [x, counts], 4, domain=MICROSOFT)
    kept = np.arange(5) < counts[:, None]
    np.testing.assert_array_equal(y, x[kept])
    places = np.arange(20).reshape(4, 5)
    assert offsets.ravel().tolist() == [*places[kept], *places[~kept]] and offsets.shape == (4, 5)
    assert ends.tolist() == [0, 3, 3, 8, 9] and longest.tolist() == [5]
    (back,) = run_npu("RestorePadding", [y, offsets], domain=MICROSOFT)
    np.testing.assert_array_equal(back, x * kept[..., None])


@pytest.mark.parametrize("op, shapes, values, message", [
    ("RemovePadding", (2, 3, 4), [1, 4], "sequences of 0 to 3"),
    ("RemovePadding", (2, 3, 4), [1, -1], "sequences of 0 to 3"),
    ("RemovePadding", (2, 3, 4), [1], "expected sequence_token_count"),
    ("RemovePadding", (2, 3), [1, 1], "expected input"),
    ("RestorePadding", (2, 4), [[0, 9]], "token_offset"),
    ("RestorePadding", (2, 4), [[0, -1]], "token_offset"),
    ("RestorePadding", (3, 4), [[0, 1]], "expected input"),
])  # fmt: skip
def test_hostile_padding(op, shapes, values, message) -> None:
    given = [np.ones(shapes, np.float32), np.array(values, np.int32)]
    with pytest.raises(ERRORS, match=message):
        Node(op, given, 4 if op == "RemovePadding" else 1, domain=MICROSOFT)(*given)

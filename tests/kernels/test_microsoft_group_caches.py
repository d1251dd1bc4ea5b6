"""GroupQueryAttention with a quantised cache or one of the last tokens, against the CPU."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx_nodes import (
    Node,
    make_model,
    make_session,
    npu_nodes,
    run_cpu,
    run_in_place,
    run_npu,
)
from test_microsoft_attention import KEY_HEADS, SIZE, attributes, operands

OP = "GroupQueryAttention"
# Sums in another order; float16 also rounds scores and weights, of up to 2.
NEAR = {"float32": 2e-6, "float16": 4e-3}
# (rows of the past cache, new rows, keys of each entry)
PHASES = [
    (8, 6, [6]),  # a prompt
    (8, 6, [4, 6]),  # padded on the right
    (9, 1, [10, 10]),  # a step, into a cache that grows
    (20, 1, [10, 7, 20]),  # a step, into a cache with room
    (20, 3, [12]),  # a prompt that goes on
]
FEATURES = [
    {},
    {"packed": True},
    {"rotary": True},
    {"rotary": True, "packed": True, "interleaved": True},
    {"local_window_size": 3},
    {"softcap": 1.5},
    {"sink": True},
    {"bias": True},
]


def quantised(rng, given: list, bits: int, by: str) -> tuple[list, dict]:
    """The operands with a cache of integers, the last quarter of whose range saturates."""
    batch, rows = given[3].shape[0], given[3].shape[2]
    for i in (3, 4):
        low, high, kind = (-128, 128, np.int8) if bits == 8 else (0, 256, np.uint8)
        shape = (batch, KEY_HEADS, rows, SIZE * bits // 8)
        given[i] = rng.integers(low, high, shape).astype(kind)
    shape = (1, KEY_HEADS, 1, SIZE) if by == "PER_CHANNEL" else (1,)
    scales = [rng.uniform(0.75, 1, shape).astype(np.float32) * 2 / 2**bits for _ in "kv"]
    options = {"kv_cache_bit_width": bits, "k_quant_type": by, "v_quant_type": by}
    return [*given, *scales], options


@pytest.mark.parametrize("by", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("phase", PHASES, ids=str)
def test_quantised_caches(phase, features, bits, by) -> None:
    past_rows, new, lengths = phase
    rng = np.random.default_rng(1)
    given = operands(rng, "float32", len(lengths), new, past_rows, lengths, **features)
    given, options = quantised(rng, given, bits, by)
    options |= attributes(**features)
    got, expected = (run(OP, given, 3, **options) for run in (run_npu, run_cpu))
    for b, length in enumerate(lengths):
        first = 0 if new == max(lengths) else length - new
        rows = min(new, length - first)  # others are padding
        for cache, wanted in zip(got[1:], expected[1:], strict=True):
            assert cache.dtype == wanted.dtype and cache.shape == wanted.shape
            np.testing.assert_array_equal(cache[b, :, :length], wanted[b, :, :length])
        near = NEAR["float32"]
        np.testing.assert_allclose(got[0][b, :rows], expected[0][b, :rows], rtol=0, atol=near)


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_caches_of_float16(bits) -> None:
    rng = np.random.default_rng(2)
    given = operands(rng, "float16", 1, 3, 20, [12])
    given, options = quantised(rng, given, bits, "PER_CHANNEL")
    options |= attributes()
    got, expected = (run(OP, given, 3, **options) for run in (run_npu, run_cpu))
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=NEAR["float16"])
    for cache, wanted in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(cache[:, :, :12], wanted[:, :, :12])


def test_cache_of_float8() -> None:
    """Files for CUDA have it; the CPU provider does not, and gets the dequantised cache."""
    rng = np.random.default_rng(3)
    given = operands(rng, "float32", 1, 2, 9, [11])
    scale = np.array([0.01], np.float32)
    caches = [(given[i] / scale).astype(ml_dtypes.float8_e4m3fn) for i in (3, 4)]
    options = {"kv_cache_bit_width": 8, "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}
    y, *present = run_npu(
        OP, [*given[:3], *caches, *given[5:], scale, scale], 3, **options, **attributes()
    )
    stored = []
    for new, cache, rows in zip(given[1:3], caches, present, strict=True):
        new = new.reshape(1, 2, KEY_HEADS, SIZE).transpose(0, 2, 1, 3)
        wanted = (new * np.float32(1 / scale)).astype(ml_dtypes.float8_e4m3fn)
        wanted = np.concatenate([cache, wanted], 2)
        np.testing.assert_array_equal(rows.view(np.uint8), wanted.view(np.uint8))
        stored.append(wanted.astype(np.float32) * scale)
    past = [cache[:, :, :9] for cache in stored]
    new = [cache[:, :, 9:].transpose(0, 2, 1, 3).reshape(1, 2, -1) for cache in stored]
    expected = run_cpu(OP, [given[0], *new, *past, *given[5:]], 3, **attributes())
    np.testing.assert_allclose(y, expected[0], rtol=0, atol=NEAR["float32"])


def test_values_beyond_the_range_saturate() -> None:
    rng = np.random.default_rng(4)
    given = operands(rng, "float32", 1, 1, 4, [4])
    row = np.array([-1e30, -128.5, -8.5, -1.5, -0.5, 0.5, 1.5, 2.5, 6.5, 7.5, 8.5, 126.5, 127.5,
                    300, np.inf, -np.inf], np.float32)  # fmt: skip
    given[1] = np.tile(row, KEY_HEADS)[None, None]
    for bits in (8, 4):
        full, options = quantised(rng, list(given), bits, "PER_TENSOR")
        for scale in (1.0, 0.0):  # onnxruntime divides by 1 instead of 0
            full[-2] = np.array([scale], np.float32)
            options |= attributes()
            got, expected = (run(OP, full, 3, **options) for run in (run_npu, run_cpu))
            np.testing.assert_array_equal(got[1], expected[1])


def test_quantised_cache_that_is_bound_as_both_is_updated_in_place() -> None:
    rng = np.random.default_rng(5)
    given = operands(rng, "float32", 2, 1, 12, [6, 9])
    given, options = quantised(rng, given, 4, "PER_TENSOR")
    node = Node(OP, given, 3, **options, **attributes())
    expected = node(*given)
    result, values = run_in_place(node.session, given, y1="x3", y2="x4")
    np.testing.assert_array_equal(result, expected[0])
    for b, length in enumerate([6, 9]):
        cache = values["x3"].numpy()
        np.testing.assert_array_equal(cache[b, :, :length], expected[1][b, :, :length])


WINDOW, CAPACITY = 4, 8


def resident(tokens: int, capacity: int) -> int:
    """As the operator's documentation states it."""
    drop = capacity - WINDOW + 1
    return tokens if tokens <= capacity else tokens - drop * -(-(tokens - capacity) // drop)


# (tokens before, new ones) of a cache of CAPACITY rows, which drops 5 at once
SLIDING = [(0, 3), (0, 8), (0, 12), (4, 1), (7, 1), (8, 1), (9, 1), (20, 1), (20, 3), (7, 12)]


@pytest.mark.parametrize("features", [{}, {"rotary": True}, {"bias": True}], ids=str)
@pytest.mark.parametrize("capacity", [CAPACITY, WINDOW])
@pytest.mark.parametrize("past, new", SLIDING)
def test_cache_of_the_last_tokens(past, new, capacity, features) -> None:
    rng = np.random.default_rng(6)
    given = operands(rng, "float32", 1, new, capacity, [past + new], **features)
    options = attributes(local_window_size=WINDOW, **features) | {"sliding_window_cache": 1}
    got, expected = (run(OP, given, 3, **options) for run in (run_npu, run_cpu))
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=NEAR["float32"])
    rows = resident(past + new, capacity)
    for cache, wanted in zip(got[1:], expected[1:], strict=True):
        assert cache.shape == wanted.shape
        np.testing.assert_allclose(cache[:, :, :rows], wanted[:, :, :rows], rtol=0, atol=1e-6)


def test_entries_whose_caches_drop_different_rows() -> None:
    rng = np.random.default_rng(7)
    given = operands(rng, "float32", 3, 1, CAPACITY, [5, 9, 23], rotary=True)
    given, options = quantised(rng, given, 8, "PER_CHANNEL")
    options |= attributes(local_window_size=WINDOW, rotary=True) | {"sliding_window_cache": 1}
    got, expected = (run(OP, given, 3, **options) for run in (run_npu, run_cpu))
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=NEAR["float32"])
    for b, tokens in enumerate([5, 9, 23]):
        rows = resident(tokens, CAPACITY)
        for cache, wanted in zip(got[1:], expected[1:], strict=True):
            np.testing.assert_array_equal(cache[b, :, :rows], wanted[b, :, :rows])


def test_cache_of_the_last_tokens_in_place() -> None:
    rng = np.random.default_rng(8)
    given = operands(rng, "float32", 2, 1, CAPACITY, [6, 9])
    options = attributes(local_window_size=WINDOW) | {"sliding_window_cache": 1}
    node = Node(OP, given, 3, **options)
    expected = node(*given)
    result, values = run_in_place(node.session, given, y1="x3", y2="x4")
    np.testing.assert_array_equal(result, expected[0])
    for b, tokens in enumerate([6, 9]):
        rows = resident(tokens, CAPACITY)
        for name, wanted in (("x3", expected[1]), ("x4", expected[2])):
            cache = values[name].numpy()
            np.testing.assert_array_equal(cache[b, :, :rows], wanted[b, :, :rows])


def test_wrong_caches_are_refused() -> None:
    rng = np.random.default_rng(9)
    given, options = quantised(rng, operands(rng, "float32", 1, 1, 8, [5]), 8, "PER_CHANNEL")
    options |= attributes()
    for i, value, message in (
        (12, np.ones(SIZE, np.float32), "expected k_scale of 32 elements"),
        (13, np.ones(1, np.float32), "expected v_scale of 32 elements"),
        (3, given[3][..., :8], "expected past_key and past_value"),
        (4, given[4][:, :1], "expected past_key and past_value"),
    ):
        with pytest.raises(Exception, match=message):
            Node(OP, given, 3, **options)(*given[:i], value, *given[i + 1 :])
    small = operands(rng, "float32", 1, 1, WINDOW - 1, [3])
    options = attributes(local_window_size=WINDOW) | {"sliding_window_cache": 1}
    with pytest.raises(Exception, match="at least local_window_size, 4, rows"):
        run_npu(OP, small, 3, **options)
    with pytest.raises(Exception, match="local_window_size for sliding_window_cache"):
        run_npu(OP, small, 3, **attributes(), sliding_window_cache=1)


@pytest.mark.parametrize(
    "change", [{"kv_cache_bit_width": 4}, {"kv_cache_bit_width": 0}, {"k_quant_type": "NONE"}]
)
def test_caches_that_no_kernel_reads_are_not_claimed(change) -> None:
    rng = np.random.default_rng(10)
    given, options = quantised(rng, operands(rng, "float32", 1, 1, 8, [5]), 8, "PER_TENSOR")
    model = make_model(OP, given, 3, **(options | attributes() | change))
    assert npu_nodes(make_session(model)) == []


def test_lengths_beyond_the_bias_or_the_prompt_are_refused() -> None:
    """A bias has a column for each token, and a first prompt no other tokens."""
    rng = np.random.default_rng(11)
    given = operands(rng, "float32", 1, 1, 20, [5], bias=True)
    given[5] = np.array([15], np.int32)
    with pytest.raises(Exception, match="expected seqlens_k below total_sequence_length"):
        run_npu(OP, given, 3, **attributes())
    given = operands(rng, "float32", 1, 5, 0, [5])
    given[5] = np.array([40], np.int32)
    with pytest.raises(Exception, match="expected seqlens_k for 5 new rows"):
        run_npu(OP, given, 3, causal=0, **attributes())

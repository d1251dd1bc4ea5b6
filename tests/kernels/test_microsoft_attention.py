"""GroupQueryAttention and RotaryEmbedding of com.microsoft against onnxruntime's CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import Node, random, run_cpu, run_in_place, run_npu

MICROSOFT = "com.microsoft"
HEADS, KEY_HEADS, SIZE, POSITIONS = 4, 2, 16, 64
# Of values near 1: two units in the last place, and sixteen of float32, whose sums are in another
# order.
NEAR = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


def tables(rng, dtype: str, columns: int) -> list[np.ndarray]:
    angles = rng.uniform(-3, 3, (POSITIONS, columns))
    kind = random(rng, dtype, 1).dtype
    return [np.cos(angles).astype(kind), np.sin(angles).astype(kind)]


def operands(rng, dtype, batch, new, past_rows, lengths, **features):
    """The inputs of a node: `lengths` keys for each entry of the batch, the new ones included."""
    q = random(rng, dtype, batch, new, HEADS * SIZE, low=-1, high=1)
    k, v = (random(rng, dtype, batch, new, KEY_HEADS * SIZE, low=-1, high=1) for _ in range(2))
    if features.get("packed"):
        q, k, v = np.concatenate([q, k, v], -1), None, None
    past = [
        None
        if past_rows is None
        else random(rng, dtype, batch, KEY_HEADS, past_rows, SIZE, low=-1, high=1)
        for _ in range(2)
    ]
    total = max(lengths)
    given = [q, k, v, *past, np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
    given += tables(rng, dtype, SIZE // 2) if features.get("rotary") else [None, None]
    given.append(None)
    bias = random(rng, dtype, 1, HEADS, new, total) if features.get("bias") else None
    sink = random(rng, dtype, HEADS) if features.get("sink") else None
    return [*given, bias, sink]


def attributes(**features) -> dict:
    options = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, "domain": MICROSOFT}
    if features.get("rotary"):
        options |= {"do_rotary": 1, "rotary_interleaved": int(features.get("interleaved", 0))}
    for name in ("softcap", "local_window_size", "smooth_softmax", "scale"):
        if name in features:
            options[name] = features[name]
    return options


# (rows of the past cache, new rows, keys of each entry)
PHASES = [
    (None, 7, [7]),  # a prompt without a cache
    (0, 5, [5, 5]),
    (0, 6, [4, 6]),  # a prompt, padded on the right
    (9, 1, [10, 10]),  # a step, into a cache that grows
    (20, 1, [10, 7, 20]),  # a step, into a cache with room
    (20, 3, [12]),  # a prompt that goes on
]
FEATURES = [
    {},
    {"packed": True},
    {"rotary": True},
    {"rotary": True, "interleaved": True, "packed": True},
    {"local_window_size": 3},
    {"softcap": 1.5, "scale": 0.5},
    {"smooth_softmax": 1},
    {"sink": True},
    {"bias": True},
]


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("phase", PHASES, ids=str)
def test_group_query_attention(phase, features) -> None:
    past_rows, new, lengths = phase
    rng = np.random.default_rng(1)
    given = operands(rng, "float32", len(lengths), new, past_rows, lengths, **features)
    options = attributes(**features)
    got = run_npu("GroupQueryAttention", given, 3, **options)
    expected = run_cpu("GroupQueryAttention", given, 3, **options)
    for b, length in enumerate(lengths):
        first = 0 if new == max(lengths) else length - new
        rows = min(new, length - first)  # others are padding
        np.testing.assert_allclose(got[0][b, :rows], expected[0][b, :rows], rtol=0, atol=2e-6)
        for cache, wanted in zip(got[1:], expected[1:], strict=True):
            assert cache.shape == wanted.shape
            np.testing.assert_allclose(
                cache[b, :, :length], wanted[b, :, :length], rtol=0, atol=1e-6
            )


BEFORE_SOFTMAX, AFTER_SOFTMAX = 1, 2


@pytest.mark.parametrize("stage", [BEFORE_SOFTMAX, AFTER_SOFTMAX])
@pytest.mark.parametrize("features", [*FEATURES, {"sink": True, "softcap": 1.5}], ids=str)
@pytest.mark.parametrize("phase", PHASES, ids=str)
def test_scores_that_are_returned(phase, features, stage) -> None:
    past_rows, new, lengths = phase
    given = operands(
        np.random.default_rng(8), "float32", len(lengths), new, past_rows, lengths, **features
    )
    options = attributes(**features) | {"qk_output": stage}
    got = run_npu("GroupQueryAttention", given, 4, **options)
    expected = run_cpu("GroupQueryAttention", given, 4, **options)
    assert got[3].shape == expected[3].shape
    without = run_npu("GroupQueryAttention", given, 3, **options)[0]
    for b, length in enumerate(lengths):
        first = 0 if new == max(lengths) else length - new
        rows = min(new, length - first)  # others are padding
        np.testing.assert_array_equal(got[0][b, :rows], without[b, :rows])
        scores = got[3][b, :, :rows]
        # Sums of 16 products below 1 in another order, to which a bias up to 8 is added.
        np.testing.assert_allclose(
            scores[..., :length], expected[3][b, :, :rows, :length], rtol=0, atol=2e-6
        )
        assert not scores[..., length:].any()  # where the CPU provider leaves what was in memory


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_of_other_types_are_those_of_float32(dtype) -> None:
    past_rows, new, lengths = PHASES[5]
    given = operands(np.random.default_rng(9), dtype, 1, new, past_rows, lengths, sink=True)
    options = attributes() | {"qk_output": AFTER_SOFTMAX}
    got = run_npu("GroupQueryAttention", given, 4, **options)[3]
    narrow = given[0].dtype
    wide = [a.astype(np.float32) if a is not None and a.dtype == narrow else a for a in given]
    expected = run_npu("GroupQueryAttention", wide, 4, **options)[3]
    assert got.dtype == narrow
    np.testing.assert_allclose(got.astype(np.float32), expected, rtol=0, atol=NEAR[dtype])


def test_scores_without_a_stage_are_left_to_the_cpu() -> None:
    given = operands(np.random.default_rng(10), "float32", 1, 3, 0, [3])
    with pytest.raises(Exception, match="output_qk with qk_output=0 is not implemented"):
        run_npu("GroupQueryAttention", given, 4, **attributes())


def test_scores_need_a_column_for_each_key() -> None:
    given = operands(np.random.default_rng(10), "float32", 1, 1, 20, [12])
    given[6] = np.array(8, np.int32)
    options = attributes() | {"qk_output": BEFORE_SOFTMAX}
    with pytest.raises(Exception, match="output_qk has a column for each token"):
        run_npu("GroupQueryAttention", given, 4, **options)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("phase", PHASES, ids=str)
def test_other_types_give_what_float32_gives(phase, dtype) -> None:
    past_rows, new, lengths = phase
    rng = np.random.default_rng(2)
    given = operands(rng, dtype, len(lengths), new, past_rows, lengths, rotary=True)
    options = attributes(rotary=True)
    got = run_npu("GroupQueryAttention", given, 3, **options)
    narrow = given[0].dtype
    wide = [a.astype(np.float32) if a is not None and a.dtype == narrow else a for a in given]
    expected = run_npu("GroupQueryAttention", wide, 3, **options)
    for value, wanted in zip(got, expected, strict=True):
        assert value.dtype == narrow
        np.testing.assert_allclose(value.astype(np.float32), wanted, rtol=0, atol=2 * NEAR[dtype])


def normalised(rows: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    """RMS normalisation of each head of rows [..., heads * SIZE]."""
    heads = rows.reshape(*rows.shape[:-1], -1, SIZE).astype(np.float64)
    heads = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + epsilon) * weight
    return heads.reshape(rows.shape).astype(np.float32)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("phase", [PHASES[1], PHASES[4]], ids=str)
def test_norms_of_queries_and_keys(phase, rotary, packed) -> None:
    """As files for CUDA and WebGPU have them; the CPU provider gets normalised operands."""
    past_rows, new, lengths = phase
    rng = np.random.default_rng(6)
    given = operands(rng, "float32", len(lengths), new, past_rows, lengths, rotary=rotary)
    weights = [random(rng, "float32", SIZE) for _ in "qk"]
    options = attributes(rotary=rotary)
    wanted = [
        normalised(rows, weight, 1e-3) for rows, weight in zip(given, weights, strict=False)
    ] + given[2:]
    expected = run_cpu("GroupQueryAttention", wanted, 3, **options)
    if packed:
        given[:3] = [np.concatenate(given[:3], -1), None, None]
    got = run_npu(
        "GroupQueryAttention", [*given, None, None, *weights], 3, qk_norm_epsilon=1e-3, **options
    )
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(got[0][b], expected[0][b], rtol=0, atol=1e-5)
        for cache, other in zip(got[1:], expected[1:], strict=True):
            np.testing.assert_allclose(
                cache[b, :, :length], other[b, :, :length], rtol=0, atol=1e-5
            )


def test_every_row_sees_all_keys_where_attention_is_not_causal() -> None:
    rng = np.random.default_rng(7)
    given = operands(rng, "float32", 2, 5, 0, [5, 5])
    got = run_npu("GroupQueryAttention", given, 3, causal=0, **attributes())
    expected = run_cpu("GroupQueryAttention", given, 3, causal=0, **attributes())
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=2e-6)
    with pytest.raises(Exception, match="no local_window_size where causal is 0"):
        run_npu("GroupQueryAttention", given, 3, causal=0, **attributes(local_window_size=3))


def test_many_heads_and_keys_against_the_cpu() -> None:
    rng = np.random.default_rng(3)
    size, heads, keys, past = 64, 8, 2, 300
    q = random(rng, "float32", 1, 40, heads * size, low=-1, high=1)
    k, v = (random(rng, "float32", 1, 40, keys * size, low=-1, high=1) for _ in range(2))
    cache = [random(rng, "float32", 1, keys, past, size, low=-1, high=1) for _ in range(2)]
    given = [q, k, v, *cache, np.array([339], np.int32), np.array(340, np.int32)]
    options = {"num_heads": heads, "kv_num_heads": keys, "domain": MICROSOFT}
    got = run_npu("GroupQueryAttention", given, 3, **options)
    expected = run_cpu("GroupQueryAttention", given, 3, **options)
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=5e-6)


def test_a_cache_that_is_bound_as_both_is_updated_in_place() -> None:
    """As onnxruntime-genai does: past and present are one buffer."""
    rng = np.random.default_rng(4)
    given = operands(rng, "float32", 2, 1, 12, [6, 9])
    node = Node("GroupQueryAttention", given, 3, **attributes())
    expected = node(*given)
    result, values = run_in_place(node.session, given, y1="x3", y2="x4")
    np.testing.assert_array_equal(result, expected[0])
    for b, length in enumerate([6, 9]):
        for name, wanted in (("x3", expected[1]), ("x4", expected[2])):
            cache = values[name].numpy()
            np.testing.assert_array_equal(cache[b, :, :length], wanted[b, :, :length])


WRONG = [
    ({0: (1, 3, 63)}, {}, "query|hidden size"),
    ({1: (1, 3, 16)}, {}, "key and value|query"),
    ({3: (1, 3, 8, 16)}, {}, "past_key and past_value"),
    ({5: np.array([50], np.int32)}, {}, "expected seqlens_k"),
    ({5: np.array([-7], np.int32)}, {}, "expected seqlens_k"),
    ({6: np.array(-1, np.int32)}, {}, "total_sequence_length"),
    ({}, {"kv_num_heads": 3}, "kv_num_heads"),
    ({}, {"softcap": -1.0}, "softcap"),
    ({}, {"do_rotary": 1}, "cos_cache|rotary"),
]


@pytest.mark.parametrize("changed, options, message", WRONG, ids=str)
def test_wrong_operands_are_refused(changed, options, message) -> None:
    given = operands(np.random.default_rng(5), "float32", 1, 3, 8, [11])
    for i, value in changed.items():
        given[i] = np.zeros(value, np.float32) if isinstance(value, tuple) else value
    with pytest.raises(Exception, match=message):
        Node("GroupQueryAttention", given, 3, **(attributes() | options))(*given)


def test_positions_beyond_the_tables_are_refused() -> None:
    given = operands(np.random.default_rng(6), "float32", 1, 1, 80, [70], rotary=True)
    with pytest.raises(Exception, match="expected an index in"):
        run_npu("GroupQueryAttention", given, 3, **attributes(rotary=True))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rotary_embedding(dtype, interleaved) -> None:
    rng = np.random.default_rng(7)
    cases = [
        ((2, 5, 64), [3], 8, {}),  # heads of the tables' width
        ((2, 5, 64), (2, 5), 8, {"num_heads": 4}),
        ((2, 5, 64), (2, 5), 4, {"num_heads": 4, "rotary_embedding_dim": 8}),
        ((2, 4, 5, 16), (2, 5), 8, {}),
        ((1, 4, 1, 16), [59], 8, {}),
        ((0, 5, 64), [0], 8, {}),
    ]
    for shape, positions, columns, options in cases:
        x = random(rng, dtype, *shape)
        at = (
            rng.integers(0, POSITIONS, positions)
            if isinstance(positions, tuple)
            else np.array(positions)
        )
        given = [x, at, *tables(rng, dtype, columns)]
        options = options | {"domain": MICROSOFT, "interleaved": interleaved}
        got = run_npu("RotaryEmbedding", given, **options)[0]
        wide = [given[0].astype(np.float32), at, *(a.astype(np.float32) for a in given[2:])]
        expected = run_cpu("RotaryEmbedding", wide, **options)[0] if x.size else x
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got, expected, rtol=0, atol=8 * NEAR[dtype])


@pytest.mark.parametrize("position", [-1, 60, 2**40])
def test_wrong_positions_of_rotary_embedding(position) -> None:
    rng = np.random.default_rng(8)
    x = random(rng, "float32", 1, 5, 64)
    for at in (np.array([position]), np.full((1, 5), -100)):
        with pytest.raises(Exception, match=r"expected (a position|an index)"):
            run_npu("RotaryEmbedding", [x, at, *tables(rng, "float32", 8)], domain=MICROSOFT)

"""Attention and MultiHeadAttention of com.microsoft against onnxruntime's CPU provider."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx_nodes import CPU, NPU, Node, random, run_cpu, run_in_place, run_npu

MICROSOFT = "com.microsoft"
BATCH, ROWS, HEADS, SIZE, PAST = 2, 5, 3, 8, 4
HIDDEN = HEADS * SIZE
# Softmax and sums of a few values of up to 1, in float32; one rounding of values of up to 2
# otherwise, of the product and of the result.
NEAR = {"float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}


def close(got, expected, dtype="float32") -> None:
    assert got.shape == expected.shape
    np.testing.assert_allclose(
        got.astype(np.float32), expected.astype(np.float32), rtol=0, atol=NEAR[dtype]
    )


def wide(arrays):
    return [
        a.astype(np.float32) if a is not None and a.dtype.name in ("float16", "bfloat16") else a
        for a in arrays
    ]


def masks(rng, keys: int) -> dict[str, np.ndarray | None]:
    """Every form of a mask, by name. Entry 1 of `all hidden` sees nothing."""
    lengths = np.array([keys - 2, keys], np.int32)
    some = (rng.random((BATCH, keys)) < 0.6).astype(np.int32)
    return {
        "none": None,
        "lengths": lengths,
        "ends and starts": np.concatenate([lengths, np.array([1, 2], np.int32)]),
        "offsets": np.concatenate([lengths, np.zeros(2 * BATCH + 2, np.int32)]),
        "keys": some,
        "all hidden": np.stack([some[0], np.zeros(keys, np.int32)]),
        "rows": (rng.random((BATCH, ROWS, keys)) < 0.6).astype(np.int32),
    }


def attention_inputs(rng, dtype="float32", value_size=SIZE, bias=True, past=False):
    columns = HEADS * (2 * SIZE + value_size)
    x = random(rng, dtype, BATCH, ROWS, 20, low=-1, high=1)
    weights = random(rng, dtype, 20, columns, low=-0.5, high=0.5)
    added = random(rng, dtype, columns, low=-1, high=1) if bias else None
    cache = random(rng, dtype, 2, BATCH, HEADS, PAST, SIZE, low=-1, high=1) if past else None
    return [x, weights, added, None, cache, None]


# Where a row sees nothing, all its scores have this added, and what remains of them is rounded
# accordingly: -10000, the default, would leave three decimal digits on either side.
VALUE = {"mask_filter_value": -16.0}
FORMS = ["none", "lengths", "ends and starts", "offsets", "keys", "all hidden", "rows"]


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_attention(form, past, causal) -> None:
    rng = np.random.default_rng(1)
    given = attention_inputs(rng, past=past)
    given[3] = masks(rng, ROWS + PAST * past)[form]
    options = {"num_heads": HEADS, "unidirectional": causal, "domain": MICROSOFT, **VALUE}
    got = run_npu("Attention", given, 2, **options)
    for value, expected in zip(got, run_cpu("Attention", given, 2, **options), strict=True):
        close(value, expected)


@pytest.mark.parametrize("constant", [(), (1, 2)])
@pytest.mark.parametrize("form", ["none", "keys", "rows"])
@pytest.mark.parametrize("bias_shape", [(1, 1), (BATCH, 1), (1, HEADS), (BATCH, HEADS)])
def test_attention_bias_and_a_mask_are_added(bias_shape, form, constant) -> None:
    rng = np.random.default_rng(2)
    given = attention_inputs(rng)
    given[3] = masks(rng, ROWS)[form]
    given[5] = random(rng, "float32", *bias_shape, ROWS, ROWS)
    options = {"num_heads": HEADS, "domain": MICROSOFT, "constant": constant}
    close(run_npu("Attention", given, **options)[0], run_cpu("Attention", given, **options)[0])


def test_attributes_of_attention() -> None:
    rng = np.random.default_rng(3)
    for options in [
        {"scale": 0.7},
        {"mask_filter_value": -3.0},
        {"qkv_hidden_sizes": [HIDDEN, HIDDEN, HEADS * 16]},
    ]:
        given = attention_inputs(rng, value_size=16 if "qkv_hidden_sizes" in options else SIZE)
        given[3] = masks(rng, ROWS)["keys"]
        options = options | {"num_heads": HEADS, "domain": MICROSOFT}
        close(run_npu("Attention", given, **options)[0], run_cpu("Attention", given, **options)[0])
    # The CPU provider demands a bias.
    given = attention_inputs(rng, bias=False)
    options = {"num_heads": HEADS, "domain": MICROSOFT}
    expected = run_cpu(
        "Attention", [*given[:2], np.zeros(3 * HIDDEN, np.float32), *given[3:]], **options
    )
    close(run_npu("Attention", given, **options)[0], expected[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_types_of_attention(dtype) -> None:
    rng = np.random.default_rng(4)
    given = attention_inputs(rng, dtype, past=True)
    given[3] = masks(rng, ROWS + PAST)["keys"]
    options = {"num_heads": HEADS, "unidirectional": 1, "domain": MICROSOFT}
    got = run_npu("Attention", given, 2, **options)
    for value, expected in zip(got, run_cpu("Attention", wide(given), 2, **options), strict=True):
        assert value.dtype == given[0].dtype
        close(value, expected, dtype)


def test_a_square_mask_is_read_at_its_last_rows() -> None:
    """The CPU provider has none: it gets the rows in question as a mask of three dimensions."""
    rng = np.random.default_rng(5)
    given = attention_inputs(rng, past=True)
    keys, size = ROWS + PAST, 12
    square = np.tril(np.ones((BATCH, 1, size, size), np.int32))
    square[0, 0, :, 1] = 0
    given[3] = square
    options = {"num_heads": HEADS, "domain": MICROSOFT}
    got = run_npu("Attention", given, **options)[0]
    given[3] = np.ascontiguousarray(square[:, 0, PAST:keys, :keys])
    close(got, run_cpu("Attention", given, 2, **options)[0])


def test_a_shared_cache_of_attention() -> None:
    """The CPU provider has none: it gets the rows that count."""
    rng = np.random.default_rng(6)
    given = attention_inputs(rng)
    cache = random(rng, "float32", 2, BATCH, HEADS, 12, SIZE, low=-1, high=1)
    options = {"num_heads": HEADS, "unidirectional": 1, "domain": MICROSOFT}
    given[4] = np.ascontiguousarray(cache[:, :, :, :PAST])
    y, present = run_cpu("Attention", given, 2, **options)
    given[4] = cache
    given.append(np.array([PAST], np.int32))
    got = run_npu("Attention", given, 2, **options, past_present_share_buffer=1)
    close(got[0], y)
    assert got[1].shape == cache.shape
    close(got[1][:, :, :, : PAST + ROWS], present)


def heads_first(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.reshape(*x.shape[:2], HEADS, -1).transpose(0, 2, 1, 3))


def mha_inputs(rng, dtype="float32", keys=7, value_size=SIZE, bias=False, past=False):
    q = random(rng, dtype, BATCH, ROWS, HIDDEN, low=-1, high=1)
    k = random(rng, dtype, BATCH, keys, HIDDEN, low=-1, high=1)
    v = random(rng, dtype, BATCH, keys, HEADS * value_size, low=-1, high=1)
    added = random(rng, dtype, HEADS * (2 * SIZE + value_size), low=-1, high=1) if bias else None
    caches = [
        random(rng, dtype, BATCH, HEADS, PAST, size, low=-1, high=1) if past else None
        for size in (SIZE, value_size)
    ]
    return [q, k, v, added, None, None, *caches]


def mha(run, given, outputs=1, **options):
    return run("MultiHeadAttention", given, outputs, num_heads=HEADS, domain=MICROSOFT, **options)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("form", FORMS)
def test_multi_head_attention(form, causal, past, bias) -> None:
    rng = np.random.default_rng(7)
    given = mha_inputs(rng, keys=ROWS, bias=bias, past=past)
    mask = masks(rng, ROWS + PAST * past)[form]
    if form == "ends and starts":
        mask = None  # only Attention has them
    given[4] = mask
    outputs = 3 if past else 1
    options = {"unidirectional": causal, **VALUE}
    got = mha(run_npu, given, outputs, **options)
    for value, expected in zip(got, mha(run_cpu, given, outputs, **options), strict=True):
        close(value, expected)


def test_cross_attention() -> None:
    """As in Whisper: keys of the encoder, or those of an earlier run, in heads."""
    rng = np.random.default_rng(8)
    for bias, value_size in itertools.product([False, True], [SIZE, 16]):
        given = mha_inputs(rng, keys=9, value_size=value_size, bias=bias)
        outputs = 3 if bias else 1
        for value, expected in zip(
            mha(run_npu, given, outputs), mha(run_cpu, given, outputs), strict=True
        ):
            close(value, expected)
        given[4] = random(rng, "int32", BATCH, 9, low=0, high=2)
        given[5] = random(rng, "float32", 1, HEADS, ROWS, 9)
        close(mha(run_npu, given)[0], mha(run_cpu, given)[0])
        if value_size != SIZE:
            continue  # the CPU provider has no such values in heads
        given[1], given[2] = heads_first(given[1]), heads_first(given[2])
        close(mha(run_npu, given)[0], mha(run_cpu, given)[0])


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("mask", ["none", "lengths", "rows", "added"])
def test_the_last_row_sees_all_keys_where_attention_is_causal(mask: str, rows: int) -> None:
    """As in a step whose keys come from a cache that the model keeps itself."""
    rng = np.random.default_rng(12)
    given = mha_inputs(rng, keys=9)
    given[0] = given[0][:, :rows]
    if mask == "lengths":
        given[4] = np.array([9, 4], np.int32)
    elif mask == "rows":
        given[4] = (rng.random((BATCH, rows, 9)) < 0.6).astype(np.int32)
    elif mask == "added":
        given[5] = random(rng, "float32", 1, HEADS, rows, 9)
    for _ in range(2):
        got = mha(run_npu, given, unidirectional=1, **VALUE)[0]
        close(got, mha(run_cpu, given, unidirectional=1, **VALUE)[0])
        given[1], given[2] = heads_first(given[1]), heads_first(given[2])


def test_the_last_row_sees_all_keys_behind_a_cache() -> None:
    rng = np.random.default_rng(13)
    given = mha_inputs(rng, keys=9, past=True)
    got = mha(run_npu, given, 3, unidirectional=1)
    for value, expected in zip(got, mha(run_cpu, given, 3, unidirectional=1), strict=True):
        close(value, expected)


def test_packed_operands() -> None:
    """Only CUDA has them: the CPU provider gets the same values in tensors of their own."""
    rng = np.random.default_rng(9)
    given = mha_inputs(rng, keys=ROWS, bias=True)
    expected = mha(run_cpu, given)[0]
    apart = [x.reshape(BATCH, ROWS, HEADS, SIZE) for x in given[:3]]
    bias = given[3]
    close(mha(run_npu, [np.stack(apart, 3), None, None, bias])[0], expected)
    plain = mha(run_cpu, given[:3])[0]
    close(mha(run_npu, [given[0], np.stack(apart[1:], 3)])[0], plain)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_types_of_multi_head_attention(dtype) -> None:
    rng = np.random.default_rng(10)
    given = mha_inputs(rng, dtype, keys=ROWS, bias=True, past=True)
    given[4] = masks(rng, ROWS + PAST)["keys"]
    for value, expected in zip(mha(run_npu, given, 3), mha(run_cpu, wide(given), 3), strict=True):
        assert value.dtype == given[0].dtype
        close(value, expected, dtype)


@pytest.mark.parametrize("provider", [NPU, CPU])
def test_a_shared_cache_is_updated_in_place(provider) -> None:
    rng = np.random.default_rng(11)
    given = mha_inputs(rng, keys=1, bias=True)
    given[0] = given[0][:, :1]
    rows, past = 12, 6
    caches = [random(rng, "float32", BATCH, HEADS, rows, SIZE, low=-1, high=1) for _ in range(2)]
    given[6:] = [np.ascontiguousarray(c[:, :, :past]) for c in caches]
    expected = mha(run_cpu, given, 3)
    given[6:] = [*caches, np.array([past], np.int32)]
    node = Node("MultiHeadAttention", given, 3, provider, num_heads=HEADS, domain=MICROSOFT)
    result, values = run_in_place(node.session, given, y1="x6", y2="x7")
    close(result, expected[0])
    for name, wanted, before in (("x6", expected[1], caches[0]), ("x7", expected[2], caches[1])):
        cache = values[name].numpy()
        close(cache[:, :, : past + 1], wanted)
        np.testing.assert_array_equal(cache[:, :, past + 1 :], before[:, :, past + 1 :])


def test_many_rows_and_empty_ones() -> None:
    rng = np.random.default_rng(12)
    for batch, rows, heads, size in [(1, 200, 4, 64), (3, 33, 2, 24), (0, 4, 2, 8), (2, 0, 2, 8)]:
        x = random(rng, "float32", batch, rows, heads * size, low=-1, high=1)
        w = random(rng, "float32", heads * size, 3 * heads * size, low=-0.05, high=0.05)
        bias = random(rng, "float32", 3 * heads * size, low=-1, high=1)
        options = {"num_heads": heads, "domain": MICROSOFT}
        got = run_npu("Attention", [x, w, bias], constant=(1, 2), **options)[0]
        assert got.shape == x.shape
        if x.size:
            close(got, run_cpu("Attention", [x, w, bias], **options)[0])


WRONG_ATTENTION = [
    ({0: (2, 24)}, {}, r"input \[batch, sequence, hidden\]"),
    ({1: (19, 72)}, {}, r"weights \[hidden, columns\]"),
    ({1: (20, 71), 2: (71,)}, {}, "queries, keys and values"),
    ({2: (71,)}, {}, "weights and bias"),
    ({3: np.ones((2, 4), np.int32)}, {}, "expected mask_index of shape"),
    ({3: np.ones((2, 1, 4, 4), np.int32)}, {}, "expected mask_index of shape"),
    ({4: (2, 2, 3, 4, 7)}, {}, "expected past"),
    ({5: (2, 3, 5, 4)}, {}, "expected attention_bias"),
    ({}, {"num_heads": 0}, "num_heads"),
    ({}, {"num_heads": 5}, "heads"),
    ({}, {"qkv_hidden_sizes": [24, 16, 32]}, "qkv_hidden_sizes"),
    ({}, {"qkv_hidden_sizes": [-24, -24, 120]}, "qkv_hidden_sizes"),
    (
        {4: (2, 2, 3, 8, 8), 6: np.array([4], np.int32)},
        {"past_present_share_buffer": 1},
        "past_sequence_length",
    ),
    (
        {4: (2, 2, 3, 8, 8), 6: np.array([-1], np.int32)},
        {"past_present_share_buffer": 1},
        "past_sequence_length",
    ),
]
WRONG_MHA = [
    ({0: (2, 5, 25)}, {}, "query with columns for 3 heads"),
    ({0: (3, 5, 24)}, {}, "query's batch"),
    ({1: None, 2: None}, {}, "that holds them"),
    ({1: (2, 7, 23)}, {}, "expected key"),
    ({2: (2, 6, 24)}, {}, "expected key"),
    ({2: None}, {}, "expected key and value"),
    ({1: (2, 7, 3, 2, 8)}, {}, "no value"),
    ({1: (2, 3, 7, 4), 2: (2, 3, 7, 4)}, {}, "expected key"),
    ({3: (70,)}, {}, "expected bias of shape"),
    ({4: np.ones((2, 6), np.int32)}, {}, "expected key_padding_mask of shape"),
    ({5: (1, 2, 5, 7)}, {}, "expected attention_bias"),
    ({6: (2, 3, 4, 8)}, {}, "both past_key and past_value"),
    ({6: (2, 3, 4, 8), 7: (2, 3, 5, 8)}, {}, "expected past_key"),
    ({6: (2, 3, 9, 8), 7: (2, 3, 9, 8), 8: np.array([3], np.int32)}, {}, "past_sequence_length"),
    ({}, {"num_heads": -1}, "num_heads"),
]


def changed(given, changes):
    given = [*given, *[None] * (9 - len(given))]
    for i, value in changes.items():
        given[i] = np.zeros(value, np.float32) if isinstance(value, tuple) else value
    return given


@pytest.mark.parametrize("changes, options, message", WRONG_ATTENTION, ids=str)
def test_wrong_operands_of_attention(changes, options, message) -> None:
    given = changed(attention_inputs(np.random.default_rng(13)), changes)[:7]
    with pytest.raises(Exception, match=message):
        options = {"num_heads": HEADS, "domain": MICROSOFT} | options
        Node("Attention", given, 2, **options)(*given)


@pytest.mark.parametrize("changes, options, message", WRONG_MHA, ids=str)
def test_wrong_operands_of_multi_head_attention(changes, options, message) -> None:
    given = changed(mha_inputs(np.random.default_rng(14)), changes)
    with pytest.raises(Exception, match=message):
        options = {"num_heads": HEADS, "domain": MICROSOFT} | options
        Node("MultiHeadAttention", given, 3, **options)(*given)


def test_hostile_masks_read_nothing_beyond_the_keys() -> None:
    rng = np.random.default_rng(15)
    given = attention_inputs(rng)
    options = {"num_heads": HEADS, "domain": MICROSOFT}
    extreme = np.iinfo(np.int32)
    given[3] = np.array([extreme.min, extreme.max], np.int32)
    nothing, everything = run_npu("Attention", given, **options)[0]
    given[3] = np.array([0, ROWS], np.int32)
    expected = run_npu("Attention", given, **options)[0]
    np.testing.assert_array_equal(np.stack([nothing, everything]), expected)

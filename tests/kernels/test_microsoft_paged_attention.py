"""PagedAttention of com.microsoft, which only CUDA has, against attention in float32."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nodes import (
    feeds_of,
    make_model,
    make_session,
    npu_nodes,
    random,
    run_in_place,
    run_session,
)

HEADS, KEY_HEADS, SIZE, POSITIONS = 4, 2, 16, 64
PAGES, PAGE_ROWS, WIDTH = 12, 4, 4
OPTIONS = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, "domain": "com.microsoft"}
# One rounding of results of up to 1 and, if rotated, of queries and keys of up to 1.5.
NEAR = {"float16": 4e-3, "bfloat16": 3e-2}
NEW, PAST = [3, 1, 0, 6], [0, 9, 4, 5]


def session_of(given, **options) -> ort.InferenceSession:
    """A `Node` will not do: the schema wants ranks, and the number of columns of packed rows."""
    model = make_model("PagedAttention", given, 3, **(OPTIONS | options))
    if given[1] is None:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = given[0].shape[1]
    session = make_session(model)
    assert npu_nodes(session) == ["PagedAttention"]
    return session


def run(given, **options) -> list[np.ndarray]:
    return run_session(session_of(given, **options), feeds_of(given, ()))


def operands(rng, dtype="float16", **features) -> list:
    tokens = sum(NEW)
    q = random(rng, dtype, tokens, HEADS * SIZE, low=-1, high=1)
    k, v = random(rng, dtype, 2, tokens, KEY_HEADS * SIZE, low=-1, high=1)
    caches = random(rng, dtype, 2, PAGES, PAGE_ROWS, KEY_HEADS, SIZE, low=-1, high=1)
    table = np.full((len(NEW), WIDTH), -1, np.int32)  # unused entries are never read
    free = iter(rng.permutation(PAGES))
    for b, rows in enumerate(np.add(NEW, PAST)):
        for page in range(-(-rows // PAGE_ROWS)):
            table[b, page] = next(free)
    starts = np.concatenate([[0], np.cumsum(NEW)]).astype(np.int32)
    angles = rng.uniform(-3, 3, (POSITIONS, SIZE // 2))
    kind = q.dtype
    tables = [np.cos(angles).astype(kind), np.sin(angles).astype(kind)]
    slots = [
        table[b, position // PAGE_ROWS] * PAGE_ROWS + position % PAGE_ROWS
        for b in range(len(NEW))
        for position in range(PAST[b], PAST[b] + NEW[b])
    ]
    return [
        *([np.concatenate([q, k, v], -1), None, None] if features.get("packed") else [q, k, v]),
        *caches, starts, np.array(PAST, np.int32), table,
        *(tables if features.get("do_rotary") else [None, None]),
        np.array(slots, np.int32) if features.get("slots") else None,
        random(rng, dtype, HEADS) if features.get("sink") else None,
    ]  # fmt: skip


def rotated(x, cos, sin, interleaved):
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
    parts = a * cos - b * sin, b * cos + a * sin
    return np.stack(parts, -1).reshape(x.shape) if interleaved else np.concatenate(parts, -1)


def reference(given, **options) -> list[np.ndarray]:
    """Output and caches in float32, of sequences one after the other."""
    dtype = given[0].dtype
    wide = [a.astype(np.float32) if a is not None and a.dtype == dtype else a for a in given]
    q, k, v, keys, values, starts, past, table, cos, sin, _, sink = wide
    if k is None:
        q, k, v = np.split(q, [HEADS * SIZE, (HEADS + KEY_HEADS) * SIZE], -1)
    q, k, v = q.reshape(-1, HEADS, SIZE), *(a.reshape(-1, KEY_HEADS, SIZE) for a in (k, v))
    keys, values = keys.copy(), values.copy()
    results = []
    for b, (first, end) in enumerate(itertools.pairwise(starts)):
        at = past[b] + np.arange(end - first)
        own_q, own_k = q[first:end], k[first:end]
        if cos is not None:
            turn = [t[at][:, None] for t in (cos, sin)]
            interleaved = options.get("rotary_interleaved")
            own_q, own_k = (rotated(a, *turn, interleaved) for a in (own_q, own_k))
        pages, rows = table[b][at // PAGE_ROWS], at % PAGE_ROWS
        keys[pages, rows], values[pages, rows] = own_k, v[first:end]
        everything = np.arange(past[b] + end - first)
        pages, rows = table[b][everything // PAGE_ROWS], everything % PAGE_ROWS
        all_k, all_v = (np.repeat(c[pages, rows], HEADS // KEY_HEADS, 1) for c in (keys, values))
        scores = np.einsum("qhd,khd->hqk", own_q, all_k)
        scores = scores * (options.get("scale") or SIZE**-0.5)
        if cap := options.get("softcap"):
            scores = cap * np.tanh(scores / cap)
        distance = at[:, None] - everything[None]
        hidden = (distance < 0) & bool(options.get("is_causal", 1))
        if (window := options.get("local_window_size", -1)) > 0:
            hidden |= distance >= window
        scores = np.where(hidden, -np.inf, scores)
        if sink is not None:
            column = np.broadcast_to(sink[:, None, None], (*scores.shape[:2], 1))
            scores = np.concatenate([scores, column], -1)
        weights = np.exp(scores - scores.max(-1, keepdims=True)) if scores.size else scores
        weights = weights / weights.sum(-1, keepdims=True)
        weights = weights[..., : len(everything)]
        results.append(np.einsum("hqk,khd->qhd", weights, all_v).reshape(-1, HEADS * SIZE))
    return [np.concatenate(results), keys, values]


FEATURES = [
    {},
    {"packed": True},
    {"do_rotary": 1},
    {"do_rotary": 1, "rotary_interleaved": 1, "packed": True},
    {"slots": True},
    {"sink": True},
    {"local_window_size": 3},
    {"softcap": 1.5, "scale": 0.5},
    {"is_causal": 0},
]


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_paged_attention(dtype, features) -> None:
    rng = np.random.default_rng(1)
    given = operands(rng, dtype, **features)
    options = {k: v for k, v in features.items() if k not in ("packed", "slots", "sink")}
    got = run(given, **options)
    for value, expected in zip(got, reference(given, **options), strict=True):
        assert value.dtype == given[0].dtype and value.shape == expected.shape
        np.testing.assert_allclose(value.astype(np.float32), expected, rtol=0, atol=NEAR[dtype])


@pytest.mark.parametrize("do_rotary", [0, 1])
def test_norms_of_queries_and_keys(do_rotary) -> None:
    """As a node without norms computes from normalised operands, but for their rounding."""
    rng = np.random.default_rng(5)
    given = operands(rng, do_rotary=do_rotary)
    weights = random(rng, "float16", 2, SIZE, low=0, high=0.5)
    wanted = list(given)
    for i, weight in enumerate(weights):
        heads = given[i].astype(np.float32).reshape(len(given[i]), -1, SIZE)
        norm = np.sqrt((heads**2).mean(-1, keepdims=True) + 1e-3)
        wanted[i] = (heads / norm * weight.astype(np.float32)).reshape(given[i].shape)
        wanted[i] = wanted[i].astype(np.float16)
    options = {"do_rotary": do_rotary}
    got = run([*given, *weights], qk_norm_epsilon=1e-3, **options)
    for value, expected in zip(got, run(wanted, **options), strict=True):
        # The norm in another order: a rounding of operands of up to 2.
        np.testing.assert_allclose(
            value.astype(np.float32), expected.astype(np.float32), rtol=0, atol=2.0**-9
        )


def test_a_slot_of_minus_one_writes_nothing() -> None:
    given = operands(np.random.default_rng(2), slots=True)
    given[10][:] = -1
    _, keys, values = run(given)
    np.testing.assert_array_equal(keys, given[3])
    np.testing.assert_array_equal(values, given[4])


def test_caches_are_updated_in_place() -> None:
    given = operands(np.random.default_rng(3), do_rotary=1)
    session = session_of(given, do_rotary=1)
    expected = run_session(session, feeds_of(given, ()))
    result, values = run_in_place(session, given, y1="x3", y2="x4")
    np.testing.assert_array_equal(result, expected[0])
    np.testing.assert_array_equal(values["x3"].numpy(), expected[1])
    np.testing.assert_array_equal(values["x4"].numpy(), expected[2])


ENDS = np.array([0, 3, 4, 4, 10], np.int32)
WRONG = [
    ({0: (10, 63)}, {}, "query with columns for 4 heads"),
    ({1: (10, 16)}, {}, "key and value"),
    ({2: None}, {}, "Invalid hidden size"),  # by onnxruntime
    ({1: None}, {}, "with key and value"),
    ({3: (12, 4, 2, 8)}, {}, "expected key_cache and value_cache"),
    ({4: (12, 5, 2, 16)}, {}, "expected key_cache and value_cache"),
    ({5: ENDS[:-1]}, {}, "expected cumulative_sequence_length"),
    ({5: np.array([0, 3, 2, 4, 10], np.int32)}, {}, "expected a sequence of 0 to 16"),
    ({6: np.array([0, 9, -1, 5], np.int32)}, {}, "expected a sequence of 0 to 16"),
    ({6: np.array([0, 9, 4, 11], np.int32)}, {}, "expected a sequence of 0 to 16"),
    ({7: np.zeros((3, 4), np.int32)}, {}, "expected block_table"),
    ({7: np.full((4, 4), 12, np.int32)}, {}, "block_table entries"),
    ({7: np.full((4, 4), -1, np.int32)}, {}, "block_table entries"),
    ({10: np.full(10, 48, np.int32)}, {}, r"slot_mapping in \[-1, 48\), got 48 at 0"),
    ({10: np.full(10, -2, np.int32)}, {}, r"slot_mapping in \[-1, 48\), got -2 at 0"),
    ({10: np.full(9, 0, np.int32)}, {}, "slot_mapping of shape"),
    ({11: (3,)}, {}, "head_sink"),
    ({12: (16,), 13: (15,)}, {}, "expected k_norm_weight"),
    ({8: (64, 9), 9: (64, 9)}, {"do_rotary": 1}, "cos_cache"),
    ({8: (9, 8), 9: (9, 8)}, {"do_rotary": 1}, "expected an index in"),
    ({}, {"kv_num_heads": 3}, "kv_num_heads"),
    ({}, {"softcap": -1.0}, "softcap"),
]


@pytest.mark.parametrize("changes, options, message", WRONG, ids=lambda v: str(v)[:30])
def test_wrong_operands(changes, options, message) -> None:
    given = operands(np.random.default_rng(4))
    for i, value in changes.items():
        given += [None] * (i + 1 - len(given))
        given[i] = np.zeros(value, np.float16) if isinstance(value, tuple) else value
    with pytest.raises(Exception, match=message):
        run(given, **options)

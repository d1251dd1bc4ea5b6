"""PackedAttention and PackedMultiHeadAttention of com.microsoft, which only CUDA has.

The reference is onnxruntime's CPU provider, which gets each sequence alone.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import Node, random, run_cpu, run_npu

HEADS, SIZE = 3, 8
HIDDEN = HEADS * SIZE
OPTIONS = {"num_heads": HEADS, "domain": "com.microsoft"}
LENGTHS = [3, 0, 7, 1]
LONGEST = 9
# Softmax and sums of a few values of up to 1; of float16, two roundings of values of up to 2.
NEAR = {"float32": 3e-6, "float16": 5e-3}


def layout(lengths) -> list[np.ndarray]:
    """token_offset, of which only the shape counts, and cumulative_sequence_length."""
    offsets = np.zeros((len(lengths), LONGEST), np.int32)
    return [offsets, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)]


def each_alone(op, rows, shared, bias, lengths) -> np.ndarray:
    """Runs `op` for each sequence, with its part of `rows` and of the scores' `bias`."""
    results = []
    for b, end in enumerate(np.cumsum(lengths)):
        if lengths[b] == 0:
            continue
        own = [r[None, end - lengths[b] : end].astype(np.float32) for r in rows]
        n = lengths[b]
        scores = None if bias is None else bias[min(b, len(bias) - 1)][None, :, :n, :n]
        given = [*own, *(s if s is None else s.astype(np.float32) for s in shared)]
        given += [None] * (5 - len(given)) + [scores]
        results.append(run_cpu(op, given, **OPTIONS)[0][0])
    return np.concatenate(results)


def check(got, expected, dtype) -> None:
    assert got.dtype == dtype and got.shape == expected.shape
    np.testing.assert_allclose(got.astype(np.float32), expected, rtol=0, atol=NEAR[dtype])


@pytest.mark.parametrize("bias_shape", [None, (1, 1), (4, HEADS)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_packed_attention(dtype, bias_shape) -> None:
    rng = np.random.default_rng(1)
    x = random(rng, dtype, sum(LENGTHS), 20, low=-1, high=1)
    weights = random(rng, dtype, 20, 3 * HIDDEN, low=-0.5, high=0.5)
    added = random(rng, dtype, 3 * HIDDEN, low=-1, high=1)
    bias = random(rng, dtype, *bias_shape, LONGEST, LONGEST) if bias_shape else None
    given = [x, weights, added, *layout(LENGTHS), bias]
    wide = None if bias is None else bias.astype(np.float32)
    expected = each_alone("Attention", [x], [weights, added], wide, LENGTHS)
    for constant in ((), (1, 2)):
        check(run_npu("PackedAttention", given, constant=constant, **OPTIONS)[0], expected, dtype)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("bias_shape", [None, (1, HEADS)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_packed_multi_head_attention(dtype, bias_shape, added) -> None:
    rng = np.random.default_rng(2)
    q, k, v = random(rng, dtype, 3, sum(LENGTHS), HIDDEN, low=-1, high=1)
    more = random(rng, dtype, 3 * HIDDEN, low=-1, high=1) if added else None
    bias = random(rng, dtype, *bias_shape, LONGEST, LONGEST) if bias_shape else None
    wide = None if bias is None else bias.astype(np.float32)
    expected = each_alone("MultiHeadAttention", [q, k, v], [more], wide, LENGTHS)
    ends = [more, *layout(LENGTHS), bias]
    check(run_npu("PackedMultiHeadAttention", [q, k, v, *ends], **OPTIONS)[0], expected, dtype)
    packed = np.stack([a.reshape(-1, HEADS, SIZE) for a in (q, k, v)], 2)
    got = run_npu("PackedMultiHeadAttention", [packed, None, None, *ends], **OPTIONS)[0]
    check(got, expected, dtype)


def test_no_tokens() -> None:
    x = np.zeros((0, 3 * HIDDEN), np.float32)
    packed = x.reshape(0, HEADS, 3, SIZE)
    given = [packed, None, None, np.ones(3 * HIDDEN, np.float32), *layout([0, 0])]
    assert run_npu("PackedMultiHeadAttention", given, **OPTIONS)[0].shape == (0, HIDDEN)


ROWS = np.ones((11, HIDDEN), np.float32)
OFFSETS, ENDS = layout(LENGTHS)
WRONG = [
    ({0: ROWS[:, :-1]}, "one shape"),
    ({1: ROWS[:-1]}, "one shape"),
    ({2: ROWS[:-1]}, "one shape"),
    ({1: None, 2: None}, "that holds them"),
    ({3: np.ones(3, np.float32)}, "expected bias"),
    ({4: OFFSETS[0]}, "expected token_offset"),
    ({4: OFFSETS[:, :6]}, "sequences of 0 to 6 tokens, got 7"),
    ({5: ENDS[:-1]}, "expected cumulative_sequence_length"),
    ({5: ENDS + 1}, "expected cumulative_sequence_length"),
    ({5: np.array([0, 3, 2, 10, 11], np.int32)}, "got -1"),
    ({5: np.array([0, 3, 3, 10, 2**31 - 1], np.int32)}, "expected cumulative_sequence_length"),
    ({6: np.ones((1, 1, 9, 8), np.float32)}, "expected attention_bias"),
]


@pytest.mark.parametrize("changes, message", WRONG, ids=lambda v: str(v)[:30])
def test_wrong_operands(changes, message) -> None:
    given = [ROWS, ROWS, ROWS, None, OFFSETS, ENDS, None]
    for i, value in changes.items():
        given[i] = value
    with pytest.raises(Exception, match=message):
        Node("PackedMultiHeadAttention", given, **OPTIONS)(*given)

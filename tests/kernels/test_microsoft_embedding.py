"""EmbedLayerNormalization of com.microsoft against onnxruntime's CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import random, run_cpu, run_npu

OP, BATCH, LENGTH, HIDDEN = "EmbedLayerNormalization", 3, 7, 40
WORDS, POSITIONS, SEGMENTS = 50, 9, 2
# Normalised values of up to 10: a few roundings of float32, one of float16.
NEAR = {"float32": 5e-6, "float16": 1e-2}


def operands(rng, dtype="float32", segments=True, mask=True, positions=None):
    def table(rows):
        return random(rng, dtype, rows, HIDDEN)

    def indices(n, shape):
        return rng.integers(0, n, shape).astype(np.int32)

    shape = (BATCH, LENGTH)
    return [
        indices(WORDS, shape),
        indices(SEGMENTS, shape) if segments else None,
        table(WORDS),
        table(POSITIONS),
        table(SEGMENTS) if segments else None,
        *random(rng, dtype, 2, HIDDEN, low=-1, high=1),
        indices(3, shape) if mask else None,
        indices(POSITIONS, (positions, LENGTH)) if positions else None,
    ]


@pytest.mark.parametrize("positions", [None, 1, BATCH])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_embed_layer_normalization(dtype, segments, mask, positions) -> None:
    rng = np.random.default_rng(1)
    given = operands(rng, dtype, segments, mask, positions)
    options = {"domain": "com.microsoft", "epsilon": 1e-5}
    y, counts, total = run_npu(OP, given, 3, **options)
    kind = given[2].dtype
    wide = [a.astype(np.float32) if a is not None and a.dtype == kind else a for a in given]
    expected = run_cpu(OP, wide, 3, **options)
    assert y.dtype == total.dtype == kind
    np.testing.assert_allclose(y.astype(np.float32), expected[0], rtol=0, atol=NEAR[dtype])
    np.testing.assert_array_equal(counts, expected[1])
    np.testing.assert_allclose(total.astype(np.float32), expected[2], rtol=0, atol=NEAR[dtype])


WRONG = [
    ({0: np.full((3, 7), 50)}, r"expected input_ids in \[0, 50\), got 50 at 0"),
    ({0: np.full((3, 7), -1)}, r"expected input_ids in \[0, 50\), got -1 at 0"),
    ({1: np.full((3, 7), 2)}, r"expected segment_ids in \[0, 2\)"),
    ({8: np.full((1, 7), 9)}, r"expected position_ids in \[0, 9\)"),
    ({3: np.zeros((6, 40), np.float32)}, r"expected position_ids in \[0, 6\), got 6"),
    ({0: np.zeros(7)}, r"expected input_ids \[batch, sequence\]"),
    ({1: np.zeros((3, 6))}, "expected segment_ids of shape"),
    ({4: None}, "segment_ids and segment_embedding"),
    ({3: np.zeros((9, 39), np.float32)}, "embedding of position_ids"),
    ({5: np.zeros(39, np.float32)}, "expected gamma"),
    ({7: np.zeros((3, 8))}, "expected mask of shape"),
    ({8: np.zeros((2, 7))}, "expected position_ids of shape"),
]


@pytest.mark.parametrize("changes, message", WRONG, ids=lambda value: str(value)[:40])
def test_wrong_operands(changes, message) -> None:
    given = operands(np.random.default_rng(2))
    for i, value in changes.items():
        given[i] = value if value is None or value.dtype == np.float32 else value.astype(np.int32)
    with pytest.raises(Exception, match=message):
        run_npu(OP, given, 3, domain="com.microsoft", epsilon=1e-5)

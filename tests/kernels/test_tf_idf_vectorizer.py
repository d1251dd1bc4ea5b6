"""TfIdfVectorizer of integers."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nodes import NPU, make_model, make_session, npu_nodes, run_cpu, run_npu

POOL = {1: [[2], [5], [9]], 2: [[2, 5], [5, 2], [5, 5], [9, 2]], 3: [[2, 5, 9], [5, 5, 2]]}
OUTPUTS = [4, 0, 8, 1, 2, 3, 5, 6, 7]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(9)


def attributes(mode="TF", skips=0, shortest=1, longest=3, **more):
    counts = [0, 3, 3 + 2 * 4]
    flat = [item for grams in POOL.values() for gram in grams for item in gram]
    return {
        "mode": mode,
        "max_skip_count": skips,
        "min_gram_length": shortest,
        "max_gram_length": longest,
        "ngram_counts": counts,
        "ngram_indexes": OUTPUTS,
        "pool_int64s": flat,
        **more,
    }


def counted(x, skips, shortest, longest):
    """Every n-gram at every place and distance; one of a single item has one distance."""
    grams = [gram for of_length in POOL.values() for gram in of_length]
    y = np.zeros((*x.shape[:-1], max(OUTPUTS) + 1), np.float32)
    for row, out in zip(np.atleast_2d(x), np.atleast_2d(y), strict=True):
        for gram, output in zip(grams, OUTPUTS, strict=True):
            n = len(gram)
            for distance in range(1, (skips if n > 1 else 0) + 2):
                reach = (n - 1) * distance
                found = sum(
                    list(row[i : i + reach + 1 : distance]) == gram for i in range(len(row) - reach)
                )
                out[output] += found if shortest <= n <= longest else 0
    return y


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(40,), (5, 30), (3, 1), (2, 2)])
@pytest.mark.parametrize(
    ("skips", "shortest", "longest"), [(0, 1, 3), (5, 1, 2), (2, 2, 3), (1, 3, 3)]
)
def test_counts(rng, dtype, shape, skips, shortest, longest):
    x = rng.choice([2, 5, 9, 7], shape, p=[0.3, 0.4, 0.2, 0.1]).astype(dtype)
    given = attributes(skips=skips, shortest=shortest, longest=longest)
    got = run_npu("TfIdfVectorizer", [x], opset=9, **given)[0]
    np.testing.assert_array_equal(got, counted(x, skips, shortest, longest))
    np.testing.assert_array_equal(got, run_cpu("TfIdfVectorizer", [x], opset=9, **given)[0])


def test_any_number_of_skips(rng):
    x = rng.choice([2, 5, 9], 12).astype(np.int64)
    got = run_npu("TfIdfVectorizer", [x], opset=9, **attributes(skips=2**63 - 1))[0]
    np.testing.assert_array_equal(got, counted(x, len(x), 1, 3))


@pytest.mark.parametrize("mode", ["IDF", "TFIDF"])
@pytest.mark.parametrize("weighted", [False, True])
def test_modes(rng, mode, weighted):
    x = rng.choice([2, 5, 9, 7], (6, 12)).astype(np.int64)
    more = {"weights": [0.5 + 0.25 * i for i in range(9)]} if weighted else {}
    given = attributes(mode, skips=1, **more)
    got = run_npu("TfIdfVectorizer", [x], opset=9, **given)[0]
    expected = run_cpu("TfIdfVectorizer", [x], opset=9, **given)[0]
    assert (expected > 1).any() if mode == "TFIDF" or weighted else expected.any()
    np.testing.assert_array_equal(got, expected)


def test_no_items():
    x = np.zeros((2, 0), np.int64)
    assert not run_npu("TfIdfVectorizer", [x], opset=9, **attributes())[0].any()


WRONG = {
    "mode": ({"mode": "TF-IDF"}, "expected mode"),
    "lengths": ({"min_gram_length": 3, "max_gram_length": 2}, "min_gram_length <= max_gram_length"),
    "skips": ({"max_skip_count": -1}, "max_skip_count >= 0"),
    "an index": ({"ngram_indexes": [4, 0, -8, 1, 2, 3, 5, 6, 7]}, "negative"),
    "indexes": ({"ngram_indexes": [0, 1]}, "one of ngram_indexes for each"),
    "counts": ({"ngram_counts": [0, 3, 200]}, "expected ngram_counts that divide"),
    "a part of an n-gram": ({"ngram_counts": [0, 3, 10]}, "whole n-grams"),
    "weights": ({"weights": [1.0]}, "as many weights"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors(case):
    changed, message = WRONG[case]
    model = make_model(
        "TfIdfVectorizer", [np.zeros(4, np.int64)], opset=9, **{**attributes(), **changed}
    )
    with pytest.raises(Exception, match=message):
        make_session(model)


def test_a_shape_error():
    with pytest.raises(Exception, match="TfIdfVectorizer"):
        run_npu("TfIdfVectorizer", [np.zeros((1, 1, 3), np.int64)], opset=9, **attributes())


def test_strings_stay_on_the_cpu():
    given = {**attributes(), "pool_strings": [f"a{i}" for i in range(17)]}
    given.pop("pool_int64s")
    model = make_model("TfIdfVectorizer", [np.array(["a", "b"], object)], opset=9, **given)
    assert npu_nodes(make_session(model, NPU)) == []

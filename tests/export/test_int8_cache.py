"""Exports whose cache holds int8 with a scale for each token and head."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from onnxruntime_npu.generation import CausalLM
from transformers import DynamicCache

from .conftest import CONTINUATIONS, PROMPTS, expected_logits
from .test_causal_lm import PROVIDERS, assert_activations_on_npu, forced_logits
from .test_paged import CONTINUATIONS as LONG_CONTINUATIONS
from .test_paged import PROMPTS as LONG_PROMPTS

PAIRS = list(zip(PROMPTS, CONTINUATIONS, strict=True))


def in_steps(vectors):
    step = vectors.abs().amax(-1, keepdim=True) / 127
    return torch.round(vectors / step) * step


class RoundingCache(DynamicCache):
    """transformers' cache, whose vectors are rounded to 255 steps of their largest element."""

    def update(self, key_states, value_states, *args, **kwargs):
        return super().update(in_steps(key_states), in_steps(value_states), *args, **kwargs)


def rounded_logits(model, prompt, continuation):
    """Return transformers' logits with what is cached rounded, as expected_logits does.

    That is keys and values; of latent attention the latents, of which transformers makes both.
    """
    norms = [m for name, m in model.named_modules() if name.endswith("kv_a_layernorm")]
    hooks = [norm.register_forward_hook(lambda *given: in_steps(given[-1])) for norm in norms]
    cache = None if norms else RoundingCache()
    with torch.no_grad():
        ids = torch.tensor([prompt + continuation])
        logits = model(ids, past_key_values=cache).logits[0].float().numpy()
    for hook in hooks:
        hook.remove()
    return logits[len(prompt) - 1 : -1]


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


@pytest.mark.parametrize(
    ("kind", "cache", "prompts", "continuations"),
    [
        ("llama", "dynamic", PROMPTS, CONTINUATIONS),
        ("mistral", "static", PROMPTS, CONTINUATIONS),
        ("mistral", "paged", LONG_PROMPTS, LONG_CONTINUATIONS),
        ("gemma3_text", "static", PROMPTS, CONTINUATIONS),
        pytest.param("deepseek_v3", "dynamic", PROMPTS, CONTINUATIONS, marks=pytest.mark.slow),
        pytest.param("deepseek_v3", "static", PROMPTS, CONTINUATIONS, marks=pytest.mark.slow),
        ("deepseek_v3", "paged", LONG_PROMPTS, LONG_CONTINUATIONS),
    ],
)
def test_logits_are_those_of_transformers_with_rounded_keys_and_values(
    exported, kind, cache, prompts, continuations
):
    model, directory, report = exported(kind, cache=cache, cache_dtype="int8")
    assert report.cache_dtype == "int8" and report.gaps == []
    rounded_parts = 2 if kind == "deepseek_v3" else 4  # in two layers: latents, or both
    assert report.replaced["npu_dynamic_quant"]["emitted"] == rounded_parts
    assert 0 < report.replaced["npu_dynamic_quant"]["worst_relative_difference"] < 0.02
    for provider in PROVIDERS:
        actual = forced_logits(directory, provider, prompts, continuations)
        for row, pair in enumerate(zip(prompts, continuations, strict=True)):
            exact, rounded = expected_logits(model, *pair), rounded_logits(model, *pair)
            # A value at the border of two integers may round the other way: one step of 1/127 of
            # one element, far less than the rounding of all.
            assert rms(actual[row] - rounded) <= 0.1 * rms(exact - rounded)
            # Steps of 1/127 of the largest element, uniform errors: 1/127/sqrt(12) of it, 0.6 % of
            # the rms when the largest is 2.5 times that. Keys and values in two layers: 4 of them.
            assert rms(actual[row] - exact) <= 2 * 0.006 * rms(exact)


def test_bfloat16_hides_the_rounding_of_the_cache(exported):
    model, rounded, _ = exported("llama", cache="static", dtype="bfloat16", cache_dtype="int8")
    _, plain, _ = exported("llama", cache="static", dtype="bfloat16")
    exact = np.stack([expected_logits(model, *pair) for pair in PAIRS])
    errors = [
        rms(forced_logits(directory, PROVIDERS[0], PROMPTS, CONTINUATIONS) - exact)
        for directory in (rounded, plain)
    ]
    # Independent errors add in squares; bfloat16 rounds by up to 1/256 at every step, int8 by up to
    # 1/254 of the largest element, twice a layer.
    assert errors[0] <= 1.5 * errors[1]


@pytest.mark.parametrize(
    ("kind", "options"), [("mistral", {}), ("llama", {"dtype": "bfloat16"})], ids=["4", "2"]
)
def test_cache_takes_a_byte_for_each_element_and_a_scale(exported, kind, options):
    sizes = {}
    for rounded in ({}, {"cache_dtype": "int8"}):
        _, directory, _ = exported(kind, cache="static", **options, **rounded)
        caches = CausalLM(directory).step_model.new_cache(2, 256)
        sizes[bool(rounded)] = sum(value.tensor_size_in_bytes() for value in caches)
    vectors = 2 * 256 * 2 * 2 * 2  # rows, tokens, heads, layers, key and value: of 16 elements
    assert sizes[False] == vectors * 16 * (2 if options else 4)
    assert sizes[True] == vectors * (16 + 4)


def test_every_step_of_a_static_cache_runs_on_the_npu_and_is_replayed(exported):
    _, directory, _ = exported("mistral", cache="static", cache_dtype="int8")
    assert_activations_on_npu(directory, at_least=40)
    assert CausalLM(directory).step_model.graphs


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_genai_gets_no_configuration_of_scales_beside_a_cache(exported, cache):
    kind = "llama" if cache == "dynamic" else "mistral"
    _, directory, report = exported(kind, cache=cache, cache_dtype="int8")
    assert not (directory / "genai_config.json").exists()
    assert any(w.startswith("no genai_config.json: onnxruntime-genai") for w in report.warnings)
    assert json.loads((directory / "export_report.json").read_text())["cache_dtype"] == "int8"

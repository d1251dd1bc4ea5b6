"""Contexts beyond the length that rotary frequencies were trained for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu.exporter.original import keep_original
from onnxruntime_npu.opdef import torch_library

from .conftest import CONFIGS, tiny_model
from .test_causal_lm import PROVIDERS, TOLERANCE, forced_logits

TRAINED = 16
SHORT, LONG = [1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.8, 2.0], [1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0, 12.0]
SCALINGS = {
    "dynamic": {"factor": 4.0},
    "linear": {"factor": 4.0},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {"short_factor": SHORT, "long_factor": LONG},
    "yarn": {"factor": 4.0},
}
# A short row, whose frequencies are its own, one that outgrows the length, and a long one.
ROWS = [[7, 3, 9], [*range(3, 18)], [*range(40, 80)]]
CONTINUATIONS = [[12, 13, 14], [20, 21, 22], [30, 31, 32]]


def scaled(kind, name):
    """Return a configuration whose rotary embedding was trained for few tokens."""
    model_type, settings = CONFIGS[kind]
    rope = {"rope_type": name, "rope_theta": 1e4, **SCALINGS[name]}
    if name != "dynamic":  # which takes the longest of all positions for trained
        rope["original_max_position_embeddings"] = TRAINED
    most = TRAINED if name == "dynamic" else 4 * TRAINED
    changes = {"rope_parameters": rope, "max_position_embeddings": most}
    if name == "longrope":
        changes["original_max_position_embeddings"] = TRAINED
    return model_type, {**settings, **changes}


def cached_logits(model, prompt, continuation):
    """Return transformers' logits, step by step: what is cached stays rotated as it was."""
    cache, logits = transformers.DynamicCache(config=model.config), []
    for new in (prompt, *([token] for token in continuation[:-1])):
        with torch.no_grad():
            result = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        logits.append(result.logits[0, -1].numpy())
    return np.stack(logits)


@pytest.mark.parametrize(
    ("kind", "cache", "name"),
    [
        ("llama", "static", "dynamic"),
        ("llama", "dynamic", "llama3"),
        pytest.param("llama", "dynamic", "yarn", marks=pytest.mark.slow),
        pytest.param("phi3", "static", "longrope", marks=pytest.mark.slow),
        ("granite", "dynamic", "longrope"),
        pytest.param("granite", "dynamic", "dynamic", marks=pytest.mark.exhaustive),
        pytest.param("llama", "dynamic", "linear", marks=pytest.mark.exhaustive),
        pytest.param("deepseek_v3", "dynamic", "yarn", marks=pytest.mark.exhaustive),
        pytest.param("gpt_oss", "dynamic", "yarn", marks=pytest.mark.exhaustive),
        pytest.param("phi3", "dynamic", "longrope", marks=pytest.mark.exhaustive),
    ],
)
def test_rows_shorter_and_longer_than_trained(exported, monkeypatch, kind, cache, name):
    variant = f"{kind}-{name}"
    monkeypatch.setitem(CONFIGS, variant, scaled(kind, name))
    _, directory, report = exported(variant, cache=cache)
    assert report.gaps == [] and "rotary" not in {entry["role"] for entry in report.kept}
    for provider in PROVIDERS:
        actual = forced_logits(directory, provider, ROWS, CONTINUATIONS)
        for row, (prompt, continuation) in enumerate(zip(ROWS, CONTINUATIONS, strict=True)):
            # Of a model that has seen no other row: dynamic frequencies remember the longest.
            expected = cached_logits(tiny_model(variant), prompt, continuation)
            np.testing.assert_allclose(actual[row], expected, rtol=0, atol=TOLERANCE)


def test_frequencies_that_are_not_proven_are_listed(monkeypatch):
    torch_library.register()
    monkeypatch.setitem(CONFIGS, "granite-longrope", scaled("granite", "longrope"))
    model = tiny_model("granite-longrope")
    rotary = model.model.rotary_emb
    rotary.original_inv_freq = 1.01 * rotary.original_inv_freq
    rotary.config.rope_parameters["long_factor"] = SHORT
    rotary.long_inv_freq = torch.ones_like(rotary.inv_freq)
    _, findings = keep_original(model, "for a test")
    reasons = [k["reason"] for k in findings.kept if k["site"] == "model.rotary_emb"]
    assert len(reasons) == 1
    assert reasons[0].startswith("frequencies are those of a batch's longest row: rotary tables")

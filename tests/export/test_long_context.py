"""Contexts beyond the length that rotary frequencies were trained for."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
import torch
import transformers
from onnxruntime_npu.context_length import context_length
from onnxruntime_npu.exporter.original import keep_original
from onnxruntime_npu.exporter.proof import Findings
from onnxruntime_npu.exporter.rotary_module import follow_lengths
from onnxruntime_npu.opdef import torch_library

from .conftest import CONFIGS, tiny_model
from .test_causal_lm import PROVIDERS, TOLERANCE, empty_past, forced_logits, last_logits

TRAINED = 16
SCALINGS = {
    "dynamic": {"factor": 4.0},
    "linear": {"factor": 4.0},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {"short_mscale": 1.0, "long_mscale": 1.0},  # which only Phi-3.5-MoE reads
    "yarn": {"factor": 4.0},
}
# A short row, whose frequencies are its own, one that outgrows the length, and a long one.
ROWS = [[7, 3, 9], [*range(3, 18)], [*range(40, 80)]]
CONTINUATIONS = [[12, 13, 14], [20, 21, 22], [30, 31, 32]]
# Rotary embeddings without these scalings, or none.
UNSCALED = {
    "bart",
    "bert",
    "biogpt",
    "bloom",
    "codegen",
    "ctrl",
    "falcon-alibi",
    "gemma4_text",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gptj",
    "mpt",
    "opt",
    "recurrent_gemma",
    "roberta",
    "rwkv",
    "trocr",
    "xglm",
}
# Each architecture with one of the scalings: what depends on the length is what may go wrong.
OF_LENGTHS = ("dynamic", "longrope", "yarn")
ONLY_LONGROPE = {"phi3", "phi4_multimodal", "phimoe"}  # transformers takes no other
EVERY_KIND = [
    (kind, "longrope" if kind in ONLY_LONGROPE else OF_LENGTHS[i % len(OF_LENGTHS)])
    for i, kind in enumerate(kind for kind in CONFIGS if kind not in UNSCALED)
]


def scaled(kind, name):
    """Return a configuration whose rotary embedding was trained for few tokens."""
    model_type, settings = CONFIGS[kind]
    model = tiny_model(kind)
    config = model.config
    # Some have other frequencies in each kind of layer; those of sliding ones are not scaled.
    layered = "full_attention" in config.rope_parameters
    given = config.rope_parameters["full_attention"] if layered else config.rope_parameters
    rope = {**given, "rope_type": name, "rope_theta": 1e4, **SCALINGS[name]}
    if kind == "mimo_v2_flash":  # which would rotate an odd number of the columns
        rope["partial_rotary_factor"] = 0.5
    if kind == "lfm3":  # which rotates all columns, whatever the factor says
        rope.pop("partial_rotary_factor")
    if name == "longrope":
        frequencies = {n: len(b) for n, b in model.named_buffers() if n.endswith("inv_freq")}
        pairs = next((n for k, n in frequencies.items() if "full" in k), max(frequencies.values()))
        if kind == "mimo_v2_flash":  # the model has those of its own factor
            pairs = config.head_dim // 4
        rope["short_factor"] = np.linspace(1, 2, pairs).tolist()
        rope["long_factor"] = np.linspace(1.5, 12, pairs).tolist()
    if name != "dynamic":  # which takes the longest of all positions for trained
        rope["original_max_position_embeddings"] = TRAINED
    changes = {
        "rope_parameters": {**config.rope_parameters, "full_attention": rope} if layered else rope,
        "max_position_embeddings": TRAINED if name == "dynamic" else 4 * TRAINED,
    }
    if name == "longrope":
        changes["original_max_position_embeddings"] = TRAINED
    if config.to_dict().get("head_dim", 0) is None:  # which frequencies are computed from
        changes["head_dim"] = config.hidden_size // config.num_attention_heads
    if kind == "olmo3":  # whose sliding layers are not scaled
        changes["layer_types"] = ["sliding_attention", "full_attention"]
    return model_type, {**settings, **changes}


def cached_logits(model, turns):
    """Return transformers' logits after each turn: what is cached stays rotated as it was."""
    cache, logits = transformers.DynamicCache(config=model.config), []
    for new in turns:
        with torch.no_grad():
            result = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        logits.append(result.logits[0, -1].numpy())
    return np.stack(logits)


def assert_rows_match(directory, variant):
    """Compare rows in one batch, each with those of a model that has seen no other.

    Dynamic frequencies remember the longest.
    """
    for provider in PROVIDERS:
        actual = forced_logits(directory, provider, ROWS, CONTINUATIONS)
        for row, (prompt, continuation) in enumerate(zip(ROWS, CONTINUATIONS, strict=True)):
            turns = [prompt, *([token] for token in continuation[:-1])]
            expected = cached_logits(tiny_model(variant), turns)
            np.testing.assert_allclose(actual[row], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "cache", "name"),
    [
        ("llama", "static", "dynamic"),
        pytest.param("llama", "dynamic", "llama3", marks=pytest.mark.slow),
        pytest.param("llama", "dynamic", "yarn", marks=pytest.mark.slow),
        pytest.param("phi3", "static", "longrope", marks=pytest.mark.slow),
        ("granite", "dynamic", "longrope"),
        ("granite", "paged", "dynamic"),
        pytest.param("granite", "static", "longrope", marks=pytest.mark.slow),
        pytest.param("minicpm3", "paged", "longrope", marks=pytest.mark.exhaustive),
        ("ministral3", "dynamic", "yarn"),  # scales queries, too
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
    assert_rows_match(directory, variant)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "name"), EVERY_KIND)
def test_every_architecture_beyond_the_trained_length(exported, monkeypatch, kind, name):
    variant = f"{kind}-{name}"
    monkeypatch.setitem(CONFIGS, variant, scaled(kind, name))
    model, directory, _ = exported(variant, cache="dynamic")
    ids = torch.tensor(ROWS[2:])
    with torch.no_grad():
        change = (model(ids).logits - tiny_model(kind)(ids).logits).abs().max()
    assert change > 10 * TOLERANCE
    assert_rows_match(directory, variant)


SECOND_TURNS = [("llama", "longrope"), ("granite", "dynamic")]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *SECOND_TURNS,
        *(
            pytest.param(*form, marks=pytest.mark.exhaustive)
            for form in EVERY_KIND
            if form not in SECOND_TURNS
        ),
    ],
)
def test_second_turn_outgrows_the_trained_length(exported, monkeypatch, kind, name):
    """A left-padded row and another: one outgrows it, one nearly fills it."""
    variant = f"{kind}-{name}"
    monkeypatch.setitem(CONFIGS, variant, scaled(kind, name))
    _, directory, _ = exported(variant, cache="dynamic")
    turns = [[ROWS[1], [*range(50, 60)]], [[7, 3, 9], [*range(60, 70)]]]
    padding = len(ROWS[1]) - 3
    for provider in PROVIDERS:
        session = ort.InferenceSession(directory / "model.onnx", providers=[provider])
        past = empty_past(session, len(turns))
        shown = np.ones((2, len(ROWS[1])), np.int64)
        shown[1, :padding] = 0
        first = np.array([turns[0][0], [0] * padding + turns[1][0]], np.int64)
        second = np.array([turns[0][1], turns[1][1]], np.int64)
        before, past = last_logits(session, past, first, shown)
        shown = np.concatenate([shown, np.ones_like(second)], 1)
        after, _ = last_logits(session, past, second, shown)
        for row, each in enumerate(turns):
            expected = cached_logits(tiny_model(variant), each)
            actual = [before[row], after[row]]
            np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE)


# Positions on three axes; kinds of layers that the model reads from its rotary embedding.
@pytest.mark.parametrize("kind", ["qwen3_5_text", "lfm3"])
@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_frequencies_in_a_model_follow_each_row(monkeypatch, kind, name):
    monkeypatch.setitem(CONFIGS, "scaled", scaled(kind, name))
    findings = Findings()
    model = tiny_model("scaled")
    follow_lengths(model, findings)
    assert findings.kept == []
    short, long = ROWS[0], ROWS[2]
    padding = len(long) - len(short)
    ids = torch.tensor([[0] * padding + short, long])
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        for row, tokens in enumerate((short, long)):
            expected = tiny_model("scaled")(torch.tensor([tokens])).logits[0, -1]
            torch.testing.assert_close(logits[row, -1], expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("rotary", "expected"),
    [
        (None, 16),
        ({"rope_type": "yarn", "factor": 4.0}, 16),
        ({"rope_type": "dynamic", "factor": 4.0}, 64),
        ({"full": {"rope_type": "dynamic", "factor": 2.0}, "sliding": None}, 32),
        ({"full": {"rope_type": "linear", "factor": 2.0}, "sliding": {"rope_type": "default"}}, 16),
    ],
)
def test_dynamic_scaling_lengthens_the_context(rotary, expected):
    assert context_length({"max_position_embeddings": 16, "rope_parameters": rotary}) == expected


def test_frequencies_that_are_not_proven_are_listed(monkeypatch):
    torch_library.register()
    monkeypatch.setitem(CONFIGS, "granite-longrope", scaled("granite", "longrope"))
    model = tiny_model("granite-longrope")
    rotary = model.model.rotary_emb
    rotary.original_inv_freq = 1.01 * rotary.original_inv_freq
    rotary.config.rope_parameters["long_factor"] = rotary.config.rope_parameters["short_factor"]
    rotary.long_inv_freq = torch.ones_like(rotary.inv_freq)
    _, findings = keep_original(model, "for a test")
    reasons = [k["reason"] for k in findings.kept if k["site"] == "model.rotary_emb"]
    assert len(reasons) == 1
    assert reasons[0].startswith("frequencies do not follow a row's length: rotary tables")
    (warning,) = findings.warnings
    assert warning.startswith("rows beyond the original context may be wrong: model.rotary_emb")

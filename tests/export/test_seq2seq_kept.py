"""Encoder-decoders of which some part's attention is the model's own, beside one that is fused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu import export_seq2seq

from .conftest import enlarge, model_kept
from .test_seq2seq import BART, PROVIDERS, T5, expected_logits, forced_logits, source_of

_TOKENS = {"bos_token_id": 2, "eos_token_id": 2}
_LAYERS = {
    **{"vocab_size": 97, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 4},
    **{"layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0},
    **{"eos_token_id": 1, "bos_token_id": 2},
}
# Settings, and the files with attention that is not fused.
MODELS = {
    # Its encoder's own attention adds a mask, which the fused one of its decoder does not.
    "bigbird_pegasus": ({**BART, **_TOKENS, "block_size": 4, "num_random_blocks": 1}, ["encoder"]),
    "longt5": ({**T5, "local_radius": 4}, ["encoder"]),
    "mvp": ({**BART, **_TOKENS}, ["encoder", "decoder"]),
    "pegasus_x": ({**BART, **_TOKENS, "block_size": 8, "num_global_tokens": 4}, ["encoder"]),
    "t5gemma": (
        {"encoder": _LAYERS, "decoder": _LAYERS, "vocab_size": 97},  # of capped scores
        ["encoder", "decoder"],
    ),
}
KINDS = [
    "bigbird_pegasus",
    *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in [*MODELS][1:]),
]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_those_of_transformers(tmp_path, kind):
    settings, kept = MODELS[kind]
    torch.manual_seed(5)
    config = transformers.AutoConfig.for_model(kind, **settings)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    enlarge(model, embeddings=lambda p: p.copy_(0.3 * torch.randn_like(p)))
    with model_kept(model):
        report = export_seq2seq(model, tmp_path)
    assert report.gaps == []
    warnings = " ".join(report.parts["decoder_model.onnx"].warnings)
    assert ("texts of more than 28, in which" in warnings) == (kind == "bigbird_pegasus")
    unfused = [name for name, part in report.parts.items() if part.kept]
    assert unfused == [f"{part}_model.onnx" for part in kept]
    source = source_of(model)
    expected = expected_logits(model, source)
    # Float32 sums in another order; see exporter/proof.py.
    tolerance = 1e-4 * np.abs(expected).max()
    for provider in PROVIDERS:
        actual = forced_logits(tmp_path, provider, source)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def test_documentation_lists_every_tested_model():
    text = (Path(__file__).resolve().parents[2] / "docs" / "encoders.md").read_text()
    assert all(f"`{kind}`" in text for kind in MODELS)

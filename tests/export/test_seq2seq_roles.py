"""Encoder-decoders with attention, experts or sources that no other model has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu import NPUModelForSeq2SeqLM, export_seq2seq
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.generation import Seq2SeqLM

from .conftest import enlarge, export_once, model_kept
from .test_seq2seq import (
    BART,
    FORCED,
    FUSED_BART,
    PROMPT,
    PROVIDERS,
    SIZES,
    T5,
    equals_transformers,
    forced_logits,
    source_of,
)

_TOKENS = {"bos_token_id": 2, "eos_token_id": 2}
_LAYER = {"num_layers": 1, "num_decoder_layers": 1}
_SPARSE = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 4}
_ROUTED = {
    "_npu_grouped_matmul": 2,
    "npu_moe_finalize_routing": 1,
    "npu_moe_gating_top_k_softmax": 1,
    "npu_moe_init_routing_v2": 1,
}
# Settings, the fused operators of the encoder and those of the decoder.
MODELS = {
    "fsmt": (
        {**BART, "langs": ["a", "b"], "src_vocab_size": 101, "tgt_vocab_size": 97, **_TOKENS},
        {"npu_fusion_attention": 1, "npu_layer_norm_eval": 2},
        {"npu_fusion_attention": 2, "npu_layer_norm_eval": 3},
    ),
    "led": (
        {
            **{**BART, **_TOKENS, "attention_window": [8]},
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
        # The window and the global tokens.
        {"npu_fusion_attention": 2, "npu_gelu": 1, "npu_layer_norm_eval": 3},
        {"npu_gelu": 1, "npu_layer_norm_eval": 4},
    ),
    "speech_to_text": (
        {
            **{**SIZES, **_TOKENS, "pad_token_id": 1, "decoder_start_token_id": 3},
            **{"input_feat_per_channel": 16, "max_source_positions": 60, "conv_channels": 32},
            "max_target_positions": 40,
        },
        {"npu_fusion_attention": 1, "npu_layer_norm_eval": 3},
        {name: count for name, count in FUSED_BART[1].items() if name != "npu_gelu"},
    ),
    "switch_transformers": (
        # Experts take fewer tokens of a source than choose them, and all of the decoder's.
        {**T5, **_LAYER, **_SPARSE, "expert_capacity": len(PROMPT) + len(FORCED) - 1},
        {**_ROUTED, "npu_add_rms_norm": 2, "npu_fusion_attention": 1, "npu_rms_norm": 1},
        {**_ROUTED, "npu_add_rms_norm": 3, "npu_fusion_attention": 2, "npu_rms_norm": 1},
    ),
}


def tiny_model(kind, settings):
    """Return a random model whose activations are large enough for mistakes to show."""
    torch.manual_seed(5)
    speech = kind == "speech_to_text"
    auto = "AutoModelForSpeechSeq2Seq" if speech else "AutoModelForSeq2SeqLM"
    config = transformers.AutoConfig.for_model(kind, **settings)
    model = getattr(transformers, auto).from_config(config).eval()
    return enlarge(model, embeddings=lambda p: p.copy_(0.3 * torch.randn_like(p)))


def inputs_of(model):
    """Return the encoder's inputs by name: three rows of other lengths."""
    if model.main_input_name == "input_ids":
        return source_of(model)
    generator = torch.Generator().manual_seed(9)
    frames = torch.randn(3, 41, model.config.input_feat_per_channel, generator=generator)
    mask = (torch.arange(41) < torch.tensor([[41], [12], [35]])).long()
    return {"input_features": frames, "attention_mask": mask}


def expected_logits(model, source, **options):
    ids = torch.tensor([PROMPT + FORCED[:-1]]).repeat(3, 1)
    with torch.no_grad():
        # FSMT's masks are causal without a cache alone.
        logits = model(**source, **options, decoder_input_ids=ids, use_cache=False).logits
    return logits[:, len(PROMPT) - 1 :].numpy()


def generated(model, source):
    """Return the tokens that transformers generates greedily, up to the stop token."""
    with torch.no_grad():
        rows = model.generate(**source, max_new_tokens=9, do_sample=False, num_beams=1).tolist()
    stop = model.generation_config.eos_token_id
    rows = [row[1:] for row in rows]
    return [row[: row.index(stop)] if stop in row else row for row in rows]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return a function that gives (model, directory, report) of an export, made once."""
    made = {}

    def get(kind):
        if kind not in made:
            model = tiny_model(kind, MODELS[kind][0])

            def export(place):
                with model_kept(model):
                    return export_seq2seq(model, place)

            made[kind] = model, *export_once(tmp_path_factory, f"seq2seq_{kind}", export)
        return made[kind]

    return get


@pytest.mark.parametrize("kind", MODELS)
def test_logits_and_generated_tokens_equal_those_of_transformers(exported, kind):
    model, directory, report = exported(kind)
    assert report.gaps == []
    assert [[each["role"] for each in part.kept] for part in report.parts.values()] == [
        [],
        ["attention"] if kind == "led" else [],
    ]
    emitted = [
        {op: counts["emitted"] for op, counts in part.replaced.items()}
        for part in report.parts.values()
    ]
    assert emitted == list(MODELS[kind][1:])
    source = inputs_of(model)
    expected = expected_logits(model, source)
    equals_transformers(directory, source, expected, generated(model, source))


def test_tokens_with_a_mask_of_two_are_global_in_longformers_attention(exported):
    model, directory, _ = exported("led")
    source = inputs_of(model)
    everywhere = torch.zeros_like(source["input_ids"])
    everywhere[:, [0, 2]] = 1
    expected = expected_logits(model, source, global_attention_mask=everywhere)
    tolerance = 1e-4 * np.abs(expected).max()  # float32 sums in another order; see proof.py
    assert np.abs(expected_logits(model, source) - expected).max() > 100 * tolerance
    merged = {**source, "attention_mask": source["attention_mask"] * (1 + everywhere)}
    for provider in PROVIDERS:
        actual = forced_logits(directory, provider, merged)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("masked", [True, False])
def test_generate_of_sound_with_padding_is_that_of_transformers(exported, masked):
    model, directory, _ = exported("speech_to_text")
    source = inputs_of(model)
    if not masked:
        del source["attention_mask"]
    options = {"max_new_tokens": 7, "do_sample": False, "eos_token_id": None, "num_beams": 3}
    ours = NPUModelForSeq2SeqLM.from_pretrained(directory)
    with torch.no_grad():
        expected = model.generate(**source, **options).tolist()
    assert ours.generate(**source, **options).tolist() == expected


def test_frames_without_a_mask_are_refused(exported):
    model, directory, _ = exported("speech_to_text")
    frames = inputs_of(model)["input_features"].numpy()
    with pytest.raises(ArgumentError, match="encoder's inputs input_features, attention_mask, got"):
        Seq2SeqLM(directory).generate_from({"input_features": frames})


def test_experts_are_quantised(tmp_path):
    model = tiny_model("switch_transformers", MODELS["switch_transformers"][0])
    report = export_seq2seq(model, tmp_path, quant="w8a8_dynamic")
    assert report.gaps == report.kept == []
    source = inputs_of(model)
    exact = expected_logits(model, source)
    for provider in PROVIDERS:
        error = forced_logits(tmp_path, provider, source) - exact
        # Rounding to 8 bits has an error of some 0.4 % at each of a dozen steps; a token whose best
        # two experts are near each other may get the other one.
        assert 1e-4 < np.sqrt(np.median(error**2) / np.median(exact**2)) < 0.05


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        (
            "nllb-moe",
            {**BART, **_TOKENS, "num_experts": 4, "encoder_sparse_step": 1},
            r"runs experts 0, 1 of 4, expected all 4 that its router chooses: transformers has",
        ),
    ],
)
def test_model_that_transformers_computes_wrongly_is_refused(tmp_path, kind, settings, reason):
    with pytest.raises(ExportError, match=reason):
        export_seq2seq(tiny_model(kind, settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_documentation_lists_every_tested_model():
    text = (Path(__file__).resolve().parents[2] / "docs" / "encoders.md").read_text()
    assert all(f"`{kind}`" in text for kind in [*MODELS, "nllb-moe"])

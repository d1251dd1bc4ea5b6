"""Models that are not rebuilt: their own forward pass, with attention and proven modules fused."""

from __future__ import annotations

import copy
import json
import sys
import types

import numpy as np
import onnxruntime_npu
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.attention_interface import (
    ATTENTION,
    attend_with_sinks,
    fuse_attention,
)
from onnxruntime_npu.exporter.original import keep_original
from onnxruntime_npu.exporter.position_tables import follow_positions
from onnxruntime_npu.exporter.proof import Findings
from onnxruntime_npu.exporter.replaced_functions import ReplacedFunctions
from onnxruntime_npu.generation import CausalLM
from onnxruntime_npu.opdef import torch_library
from transformers.models.inkling2 import modeling_inkling2

from .conftest import CONTINUATIONS, PROMPTS, enlarge, expected_logits, tiny_model
from .test_causal_lm import PROVIDERS, TOLERANCE, forced_logits, marks_of_kind

ATTENDED = {"npu_fused_infer_attention_score": 2}
ROTATED = {"npu_rotary_mul": 4}
# Norms of the sum with a residual: all but the first of a layer's two, and the last.
ADDED = {"npu_add_rms_norm": 4}
ROUTED = {"npu_moe_init_routing_v2": 1, "_npu_grouped_matmul": 2, "npu_moe_finalize_routing": 1}
GROUPED = {"npu_moe_gating_top_k": 1}
# Projections, norms and rotation of latent queries and keys are one node in each layer.
LATENT = {**ATTENDED, "npu_mla_prolog": 2, **ADDED, "npu_rms_norm": 1}
# What each tiny model of two layers gets; and the roles of what stays as it is.
FUSED = {
    "bloom": ({**ATTENDED, "npu_gelu": 2}, set()),
    "cohere": ({**ATTENDED, **ROTATED, "npu_swiglu": 2, "npu_layer_norm_eval": 3}, set()),
    # An MLP, a shared expert and the routed ones.
    "deepseek_v2": ({**LATENT, **ROUTED, **GROUPED, "npu_swiglu": 3}, set()),
    # One of the layers is dense, the other has a shared expert.
    "deepseek_v3": ({**LATENT, **ROUTED, **GROUPED, "npu_swiglu": 3}, set()),
    "falcon": ({**ATTENDED, **ROTATED, "npu_gelu": 2}, set()),
    "falcon-alibi": ({**ATTENDED, "npu_gelu": 2}, set()),
    "gemma2": ({**ROTATED, "npu_geglu": 2, **ADDED, "npu_rms_norm": 5}, {"attention"}),
    "gemma3_text": ({**ATTENDED, **ROTATED, "npu_geglu": 2, **ADDED, "npu_rms_norm": 9}, set()),
    "gemma3n_text": (
        {
            **{op: 2 * n for op, n in (ATTENDED | {"npu_geglu": 2, "npu_gelu": 2}).items()},
            **ADDED,
            "npu_rms_norm": 36,
            "npu_rotary_mul": 6,  # queries of four layers, keys of two
        },
        set(),
    ),
    "gemma4_text": (
        {
            **{op: 2 * n for op, n in (ATTENDED | {"npu_geglu": 2, "npu_gelu": 2}).items()},
            **ADDED,
            "npu_rms_norm": 24,
            "npu_rotary_mul": 6,
        },
        set(),
    ),
    "glm4": ({**ATTENDED, **ROTATED, "npu_swiglu": 2, **ADDED, "npu_rms_norm": 5}, set()),
    "gpt2": ({**ATTENDED, "npu_gelu": 2}, set()),
    "gpt_oss": (
        {
            "npu_fusion_attention": 2,
            **ROTATED,
            **{op: 2 * n for op, n in ROUTED.items()},
            "npu_moe_gating_top_k_softmax": 2,
            **ADDED,
            "npu_rms_norm": 1,
        },
        set(),
    ),
    "gpt_neo": ({**ATTENDED, "npu_gelu": 2}, set()),
    "gptj": ({**ATTENDED, **ROTATED, "npu_gelu": 2}, set()),
    "granite": ({**ATTENDED, **ROTATED, "npu_swiglu": 2, **ADDED, "npu_rms_norm": 1}, set()),
    # The second layer has experts, and no rotation.
    "llama4_text": (
        {**ATTENDED, "npu_rotary_mul": 2, "npu_swiglu": 3, **ROUTED, **ADDED, "npu_rms_norm": 1},
        set(),
    ),
    "mpt": ({**ATTENDED, "npu_gelu": 2}, {"mlp"}),
    "olmo2": (
        {**ATTENDED, **ROTATED, "npu_swiglu": 2, "npu_add_rms_norm": 1, "npu_rms_norm": 8},
        set(),
    ),
    "phi": ({**ATTENDED, **ROTATED, "npu_gelu": 2}, set()),
    "xglm": ({**ATTENDED, "npu_gelu": 2}, set()),
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=marks_of_kind(kind)) for kind in FUSED],
)
def test_proven_parts_are_fused_and_the_rest_is_listed(exported, kind):
    _, _, report = exported(kind, cache="dynamic")
    fused, kept = FUSED[kind]
    assert {op: counts["emitted"] for op, counts in report.replaced.items()} == fused
    assert {entry["role"] for entry in report.kept} == {"decoder", *kept}
    assert report.gaps == [] and report.without_body == []


@pytest.mark.parametrize(
    ("kind", "cache"),
    [
        ("gemma2", "dynamic"),
        pytest.param("gemma2", "static", marks=pytest.mark.exhaustive),
        pytest.param("vaultgemma", "dynamic", marks=pytest.mark.exhaustive),
    ],
)
def test_capped_scores_are_an_operator_of_opset_23(exported, kind, cache):
    model, directory, report = exported(kind, cache=cache, opset=23)
    assert report.replaced["Attention"]["emitted"] == 2 and report.gaps == []
    assert {entry["role"] for entry in report.kept} == {"decoder"}
    nodes = onnxruntime_npu.assignment(CausalLM(directory).session)
    assert {n["provider"] for n in nodes if n["op_type"] == "Attention"} == set(PROVIDERS[:1])
    expected = expected_logits(model, PROMPTS[1], CONTINUATIONS[1])
    for provider in PROVIDERS:
        actual = forced_logits(directory, provider, PROMPTS, CONTINUATIONS)[1]
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cache"), [("gemma2", "static"), ("gemma3_text", "paged")])
def test_bfloat16_error_is_within_that_of_transformers(exported, kind, cache):
    """With other caches than those of test_precisions.py."""
    model, directory, report = exported(kind, cache=cache, dtype="bfloat16")
    assert report.gaps == []
    halved = tiny_model(kind).to(torch.bfloat16)
    actual = forced_logits(directory, PROVIDERS[0], PROMPTS, CONTINUATIONS)
    for row, (prompt, continuation) in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
        exact = expected_logits(model, prompt, continuation)
        theirs = np.abs(expected_logits(halved, prompt, continuation) - exact)
        ours = np.abs(actual[row] - exact)
        # Both round at every step; the rounding errors are of similar size, not equal.
        assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((theirs**2).mean())


def test_export_leaves_the_callers_model_and_transformers_as_they_were(tmp_path):
    model = tiny_model("glm4", num_hidden_layers=1)
    before = copy.deepcopy(model.state_dict())
    module = sys.modules[type(model).__module__]
    rotate, attention = module.apply_rotary_pos_emb, model.config._attn_implementation
    export_causal_lm(model, tmp_path)
    assert module.apply_rotary_pos_emb is rotate
    assert model.config._attn_implementation == attention != ATTENTION
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_model_of_a_directory_is_read_again_after_it_was_taken_apart(tmp_path):
    # Its embedding is proven; its first layer differs where it is added up.
    model = tiny_model("granite", embedding_multiplier=1.0, logits_scaling=1.0)
    model.save_pretrained(tmp_path / "in")
    report = export_causal_lm(tmp_path / "in", tmp_path / "out", check=False)
    assert "layer output: differs" in report.kept[0]["reason"]
    actual = forced_logits(tmp_path / "out", PROVIDERS[0], PROMPTS, CONTINUATIONS)
    expected = expected_logits(model, PROMPTS[0], CONTINUATIONS[0])
    np.testing.assert_allclose(actual[0], expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("gemma2", {"cache": "paged"}, "paged cache: attention over such a cache needs the fused"),
        ("gemma2", {"cache_dtype": "int8"}, "dynamic int8 cache: attention over such a cache"),
    ],
)
def test_cache_that_a_model_cannot_have_is_refused_with_the_reason(tmp_path, kind, options, reason):
    message = rf"cannot export .* \({kind}\): .* pass with a {reason}.*: pass cache='dynamic' and"
    with pytest.raises(ExportError, match=message):
        export_causal_lm(tiny_model(kind), tmp_path, **options)
    assert not list(tmp_path.iterdir())


def test_tables_that_follow_the_given_positions_are_left_as_they_are():
    for kind in ("gpt2", "opt"):  # from the first row of the table, and from the third
        assert not follow_positions(tiny_model(kind), ReplacedFunctions()).first_rows
    table = tiny_model("roberta", pad_token_id=3)
    assert list(follow_positions(table, ReplacedFunctions()).first_rows.values()) == [4]


def test_decoder_of_speech_alone_is_exported_with_a_cache(tmp_path):
    """Its table is read by indices in brackets; the encoder's layers and heads are others."""
    torch.manual_seed(11)
    config = transformers.WhisperConfig(
        vocab_size=97,
        d_model=32,
        encoder_layers=1,
        encoder_attention_heads=4,
        decoder_layers=2,
        decoder_attention_heads=2,
        max_target_positions=24,
        pad_token_id=0,
    )
    model = enlarge(transformers.WhisperForCausalLM(config).eval())
    report = export_causal_lm(model, tmp_path)
    assert report.check is not None  # of no more tokens than there are positions
    assert report.replaced["npu_fused_infer_attention_score"]["emitted"] == 2
    assert not any("again" in warning for warning in report.warnings)
    actual = forced_logits(tmp_path, PROVIDERS[0], PROMPTS, CONTINUATIONS)
    for row, pair in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
        expected = expected_logits(model, *pair)
        np.testing.assert_allclose(actual[row], expected, rtol=0, atol=TOLERANCE)
    assert CausalLM(tmp_path).context_length == 24
    genai = json.loads((tmp_path / "genai_config.json").read_text())["model"]
    assert genai["context_length"] == 24
    sizes = genai["decoder"]
    assert (sizes["num_attention_heads"], sizes["num_hidden_layers"]) == (2, 2)
    calibration = [[*range(3, 40)]]  # cut to the positions that there are
    options = {"dtype": "bfloat16", "quant": "w4a16", "calibration": calibration}
    report = export_causal_lm(model, tmp_path, check=False, **options)
    assert report.replaced["npu_weight_quant_batchmatmul"]["emitted"] == 2 * 6


def test_model_that_refuses_other_attention_keeps_its_own(monkeypatch):
    torch_library.register()
    model = tiny_model("granite")

    def refuse(_):
        raise ValueError("only flash_attention_3")

    monkeypatch.setattr(model, "set_attn_implementation", refuse)
    _, findings = keep_original(model, "for a test")
    reasons = [k["reason"] for k in findings.kept if k["role"] == "attention"]
    assert reasons == ["not fused: only flash_attention_3"]
    assert "npu_fused_infer_attention_score" not in findings.expected_nodes


def test_rotation_that_is_not_proven_is_kept(monkeypatch):
    torch_library.register()
    model = tiny_model("granite")
    module = sys.modules[type(model).__module__]
    original = module.apply_rotary_pos_emb

    def stretched(q, k, cos, sin, unsqueeze_dim=1):
        return original(q, k, cos * 1.01, sin, unsqueeze_dim)

    monkeypatch.setattr(module, "apply_rotary_pos_emb", stretched)
    _, findings = keep_original(model, "for a test")
    assert "npu_rotary_mul" not in findings.expected_nodes
    assert next(k["reason"] for k in findings.kept if k["role"] == "rotary").startswith(
        "rotary query"
    )
    assert module.apply_rotary_pos_emb is stretched


def test_experts_that_are_not_proven_gather_their_weights():
    torch_library.register()
    model = tiny_model("gpt_oss")
    experts = model.model.layers[1].mlp.experts
    gate = experts._apply_gate
    experts.register_buffer("calls", torch.zeros(1))

    def counting(gate_up):
        experts.calls += 1
        return gate(gate_up) * (1 + 0.01 * experts.calls)

    experts._apply_gate = counting  # differs from call to call
    _, findings = keep_original(model, "for a test")
    assert [k["site"] for k in findings.kept if k["role"] == "experts"] == [
        "model.layers.1.mlp.experts",
        "",
    ]
    assert findings.expected_nodes["_npu_grouped_matmul"] == 2


def test_attention_that_is_not_proven_is_kept(monkeypatch):
    torch_library.register()
    model = tiny_model("gptj")
    layer = model.transformer.h[1].attn
    attend = type(layer)._attn
    monkeypatch.setattr(layer, "_attn", lambda q, *given: attend(layer, 1.01 * q, *given))
    _, findings = keep_original(model, "for a test")
    reasons = [k["reason"] for k in findings.kept if k["role"] == "attention"]
    assert len(reasons) == 1 and reasons[0].startswith("not fused: attention: differs by")
    assert "npu_fused_infer_attention_score" not in findings.expected_nodes
    assert model.config._attn_implementation != ATTENTION


def test_model_that_looks_up_its_attention_by_name_is_converted():
    torch_library.register()
    decoder, _ = keep_original(tiny_model("gptj"), "for a test")
    assert decoder.model.config._attn_implementation == ATTENTION
    decoder.convert(torch.bfloat16)
    assert {weight.dtype for weight in decoder.model.parameters()} == {torch.bfloat16}


def test_mask_that_a_layer_adds_to_its_scores_is_fused():
    torch_library.register()
    _, findings = keep_original(tiny_model("doge"), "for a test")
    assert findings.expected_nodes["npu_fused_infer_attention_score"] == 2


def test_attention_to_an_encoder_that_is_not_there_is_not_counted():
    torch_library.register()
    _, findings = keep_original(tiny_model("trocr"), "for a test")
    assert findings.expected_nodes["npu_fused_infer_attention_score"] == 2


@pytest.mark.parametrize("biased", [False, True])
def test_sinks_of_queries_equal_those_of_inkling_2(biased):
    torch_library.register()
    rng = torch.Generator().manual_seed(0)
    query, sinks, bias = (torch.randn(2, 4, 3, n, generator=rng) for n in (16, 1, 5))
    key, value = torch.randn(2, 2, 2, 5, 16, generator=rng)
    visible = torch.ones(2, 1, 3, 5, dtype=torch.bool).tril(2)
    visible[1, :, :, 0] = False  # padding
    own = types.SimpleNamespace(num_key_value_groups=2, training=False)
    bias = bias if biased else None
    mask = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    options = {"position_bias": bias, "sinks": sinks}
    expected, _ = modeling_inkling2.eager_attention_forward(
        own, query, key, value, mask, 0.25, **options
    )
    actual = attend_with_sinks(query, key, value, 0.25, visible, sinks, bias, layout="BNSD")
    torch.testing.assert_close(actual, expected)


def test_an_opset_is_named_only_where_it_helps():
    torch_library.register()
    ids, findings = torch.arange(4)[None], Findings()
    assert fuse_attention(tiny_model("gemma2"), lambda model: model(ids), findings)
    reasons = [entry["reason"] for entry in findings.kept]
    assert reasons == ["not fused in 2 layers: its scores are capped"]
    _, findings = keep_original(tiny_model("gemma2"), "for a test")
    reasons = [entry["reason"] for entry in findings.kept if entry["role"] == "attention"]
    own = "its scores are capped, which opset 23 has an operator for"
    assert reasons == [f"not fused in 2 layers: {own}"]


def test_layers_may_differ_in_what_their_configuration_names_once():
    """Sliding layers have heads of another number, which is not read from the whole model's."""
    torch_library.register()
    layers = ["full_attention", "sliding_attention"]
    model = tiny_model("dots3_note_text", layer_types=layers)
    assert model.config.is_heterogeneous
    decoder, _ = keep_original(model, "for a test")
    assert decoder.heads == model.config.per_layer_config[0].num_attention_heads == 4


def test_own_masks_of_short_windows_are_fused():
    """A token whose window has no other visible key sees itself."""
    torch_library.register()
    _, findings = keep_original(tiny_model("gpt_neo", window_size=2), "for a test")
    assert findings.expected_nodes["npu_fused_infer_attention_score"] == 2
    assert "attention" not in {kept["role"] for kept in findings.kept}


def test_own_masks_of_another_form_are_not_fused():
    torch_library.register()
    model = tiny_model("gpt_neo")
    model.transformer.h[1].attn.attention.bias[..., 0] = True  # every token sees the first
    _, findings = keep_original(model, "for a test")
    reasons = [entry["reason"] for entry in findings.kept if entry["role"] == "attention"]
    assert reasons == ["not fused: its own mask is neither causal nor a sliding window"]

"""Attention over cached latents, whose projections are npu_mla_prolog where it takes them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.caches import CacheChoice
from onnxruntime_npu.exporter.original import keep_original
from onnxruntime_npu.exporter.proof import attempt
from onnxruntime_npu.exporter.roles.latent_projections import LatentProjections
from onnxruntime_npu.exporter.roles.latent_prolog import LatentProlog
from onnxruntime_npu.exporter.whole_model import WholeModelProbe
from onnxruntime_npu.generation import CausalLM
from onnxruntime_npu.opdef import torch_library

from .conftest import CONTINUATIONS, PROMPTS, expected_logits, tiny_model
from .stored_integers import checkpoint
from .test_causal_lm import PROVIDERS, TOLERANCE
from .test_quantized import errors, halved_errors, on_grid, rms
from .test_switched_adapters import assert_equal, logits_of, saved


@pytest.fixture(autouse=True)
def _registered():
    torch_library.register()


def reasons(findings):
    return [each["reason"] for each in findings.kept if each["role"] == "latent attention"]


@pytest.mark.parametrize("interleaved", [True, False])
def test_columns_are_rotated_in_pairs_or_halves(interleaved):
    model = tiny_model("deepseek_v3", rope_interleave=interleaved)
    _, findings = keep_original(model, "for a test")
    assert findings.expected_nodes["npu_mla_prolog"] == 2 and reasons(findings) == []


@pytest.mark.parametrize(
    ("changes", "reason", "norms"),
    [
        # As in DeepSeek-V2-Lite.
        ({"q_lora_rank": None}, "queries are not projected down", 3),
        ({"attention_bias": True, "rope_interleave": False}, "they have biases", 5),
    ],
)
def test_projections_that_the_operator_does_not_take_stay_layers(changes, reason, norms):
    _, findings = keep_original(tiny_model("deepseek_v3", **changes), "for a test")
    assert reasons(findings) == [f"its projections stay layers: {reason}"] * 2
    expected = findings.expected_nodes
    assert "npu_mla_prolog" not in expected and expected["npu_rotary_mul"] == 4
    assert expected["npu_fused_infer_attention_score"] == 2
    # Of latents in each layer, and the model's own five.
    assert expected["npu_rms_norm"] == norms + 4


def test_layer_that_computes_something_else_is_kept():
    model = tiny_model("deepseek_v3")
    attention = model.model.layers[1].self_attn
    attention.register_forward_hook(lambda _, __, result: (1.01 * result[0], *result[1:]))
    _, findings = keep_original(model, "for a test")
    assert [reason.split(":")[0] for reason in reasons(findings)] == ["attention output"]
    assert findings.expected_nodes["npu_mla_prolog"] == 1


def test_blocks_are_written_by_the_prolog(exported):
    _, _, report = exported("deepseek_v3", cache="paged")
    assert report.gaps == [] and "npu_scatter_nd_update" not in report.replaced
    _, _, report = exported("deepseek_v3", cache="static")
    assert report.gaps == [] and report.replaced["npu_scatter_nd_update"]["emitted"] == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes", "cache"),
    [
        ("deepseek_v2", {"q_lora_rank": None}, "paged"),
        ("deepseek_v2", {"q_lora_rank": None}, "dynamic"),
        ("deepseek_v3", {"attention_bias": True}, "static"),
    ],
)
def test_layers_attend_to_latents_as_transformers(tmp_path, kind, changes, cache):
    model = tiny_model(kind, **changes)
    report = export_causal_lm(model, tmp_path / "out", cache=cache, check=False)
    assert report.gaps == []
    for provider in PROVIDERS:
        assert_allclose(errors(model, tmp_path / "out", provider), 0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "caches"),
    [
        ("deepseek_v3", ("dynamic", "static", "paged")),
        ("glm_moe_dsa", ("dynamic", "static")),  # an indexer reads the latents of queries
        ("longcat_flash", ("paged",)),  # factors of queries and latents
    ],
)
def test_layers_that_are_quantised_later_are_proven(kind, caches):
    model = tiny_model(kind)
    probe = WholeModelProbe(model)
    decoder, findings = keep_original(model, "for a test", floats=False)
    assert any(isinstance(module, LatentProjections) for module in decoder.modules())
    assert not any(isinstance(module, LatentProlog) for module in decoder.modules())
    for cache in caches:
        attempt(probe.proven, decoder, CacheChoice(cache, False, "last"), findings)


@pytest.mark.parametrize(
    ("kind", "cache", "scheme"),
    [
        ("deepseek_v3", "paged", "w8a16"),
        pytest.param("deepseek_v2", "paged", "w4a16", marks=pytest.mark.slow),
        pytest.param("youtu", "dynamic", "w8a16", marks=pytest.mark.slow),
    ],
)
def test_quantised_layers_attend_to_latents(tmp_path, kind, cache, scheme):
    model = on_grid(kind, int(scheme[1]))
    options = {"dtype": "float16", "quant": scheme, "cache": cache, "check": False}
    report = export_causal_lm(model, tmp_path / "out", **options)
    assert report.gaps == [] and "npu_mla_prolog" not in report.replaced
    why = {part["site"].rpartition(".")[2]: part["reason"] for part in report.kept}
    assert why["kv_b_proj"] == "not quantised: it is multiplied head by head"
    for provider in PROVIDERS:
        # Only float16 rounds, as it does in transformers.
        assert rms(errors(model, tmp_path / "out", provider)) <= 2 * rms(halved_errors(model))


@pytest.mark.slow
def test_integer_activations_of_latents_add_their_rounding(tmp_path):
    model = on_grid("deepseek_v3", 8)
    options = {"quant": "w8a8_dynamic", "cache": "paged", "check": False}
    report = export_causal_lm(model, tmp_path / "out", **options)
    assert report.gaps == [] and report.replaced["npu_quant_matmul"]["emitted"] == 12
    size = np.abs(expected_logits(model, PROMPTS[0], CONTINUATIONS[0])).max()
    for provider in PROVIDERS:
        assert rms(errors(model, tmp_path / "out", provider)) <= 0.05 * size


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "nodes"), [(["kv_a_proj_with_mqa"], 0), (["kv_b_proj"], 4)])
def test_adapters_of_latents_are_switched(tmp_path, layers, nodes):
    """One of the projection from latents leaves keys and values to the model's own code."""
    settings = {"one": {"r": 3, "lora_alpha": 5, "target_modules": layers}}
    folders, merged = saved(tmp_path, "deepseek_v3", settings)
    report = export_causal_lm(
        tiny_model("deepseek_v3"), tmp_path / "out", switched_adapters=folders, check=False
    )
    assert report.gaps == [] and "npu_mla_prolog" not in report.replaced
    assert report.nodes.get("Expand", 0) >= nodes
    for provider in PROVIDERS:
        exported = CausalLM(tmp_path / "out", providers=[provider])
        assert_equal(logits_of(exported, None), tiny_model("deepseek_v3"))
        assert_equal(logits_of(exported, "one"), merged["one"])


@pytest.mark.slow
def test_integers_of_a_checkpoint_are_kept_with_blocks(tmp_path):
    model = checkpoint(tmp_path / "source", "youtu", "gptq", group=16)
    config = json.loads((tmp_path / "source" / "config.json").read_text())
    config["quantization_config"]["group_size"] = 16
    (tmp_path / "source" / "config.json").write_text(json.dumps(config))
    options = {"dtype": "float16", "quant": "keep", "cache": "paged", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    # Of each layer four of attention, gate and up as one, and down; kv_b_proj is of floats.
    assert report.gaps == [] and sum(report.integers.values()) == 12
    for provider in PROVIDERS:
        # Only float16 rounds, as it does in transformers.
        assert rms(errors(model, tmp_path / "out", provider)) <= 2 * rms(halved_errors(model))

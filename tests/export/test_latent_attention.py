"""Multi-head latent attention as npu_mla_prolog, where its conditions hold."""

from __future__ import annotations

import pytest
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.original import keep_original
from onnxruntime_npu.opdef import torch_library

from .conftest import tiny_model


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
    ("changes", "reason"),
    [
        # As in DeepSeek-V2-Lite.
        ({"q_lora_rank": None}, "expected 'q_a_proj' in latent attention (DeepseekV3Attention)"),
        ({"attention_bias": True}, "expected 'q_a_proj' of floats, without a bias"),
    ],
)
def test_what_the_operator_does_not_compute_is_kept_with_the_reason(changes, reason):
    _, findings = keep_original(tiny_model("deepseek_v3", **changes), "for a test")
    assert reasons(findings) == [reason] * 2
    assert "npu_mla_prolog" not in findings.expected_nodes
    assert findings.expected_nodes["npu_fused_infer_attention_score"] == 2


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
def test_projections_that_are_quantised_stay_projections(tmp_path):
    options = {"dtype": "bfloat16", "quant": "w8a16", "check": False}
    report = export_causal_lm(tiny_model("youtu"), tmp_path / "out", **options)
    assert report.gaps == [] and "npu_mla_prolog" not in report.replaced
    # Five of attention in each layer, and two of the MLP.
    assert report.replaced["npu_weight_quant_batchmatmul"]["emitted"] == 14

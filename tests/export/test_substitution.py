"""Unproven modules are not replaced, and models that cannot be exported are refused by name."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from onnxruntime_npu.exporter.checkpoint import wrap
from onnxruntime_npu.exporter.proof import NotProven, attempt, compare
from onnxruntime_npu.exporter.roles.norm import KeptNorm
from onnxruntime_npu.exporter.roles.projected_mlp import ProjectedMlpRole
from onnxruntime_npu.exporter.roles.router import RouterRole, is_router
from onnxruntime_npu.exporter.substitution import substitute
from onnxruntime_npu.exporter.weights.lazy_weight import LazyWeight
from torch import nn
from transformers.models.glm4v.modeling_glm4v import Glm4vVisionPatchMerger

from .conftest import enlarge, tiny_model

SMALL = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def test_every_part_of_llama_is_replaced():
    _, findings = substitute(tiny_model("llama"))
    assert findings.kept == []
    assert findings.expected_nodes == {
        "npu_rms_norm": 1,
        "npu_add_rms_norm": 4,
        "npu_rotary_mul": 4,
        "npu_fused_infer_attention_score": 2,
        "npu_swiglu": 2,
    }
    assert max(findings.worst_difference.values()) < 1e-5


def test_mlp_with_other_activation_is_kept():
    decoder, findings = substitute(tiny_model("llama", hidden_act="relu"))
    assert "npu_swiglu" not in findings.expected_nodes
    assert [k["site"] for k in findings.kept] == ["layers.0.mlp", "layers.1.mlp"]
    assert all("differs" in k["reason"] for k in findings.kept)
    assert "npu_rotary_mul" in findings.expected_nodes
    assert type(decoder.layers[0].mlp).__name__ == "LlamaMLP"


def test_mlps_that_clip_are_kept():
    """At 10, which few values reach where the activation is merely not linear."""
    _, findings = substitute(tiny_model("llama", hidden_act="gelu_10", num_hidden_layers=6))
    assert [k["site"] for k in findings.kept] == [f"layers.{i}.mlp" for i in range(6)]


def test_attention_that_clips_is_not_rebuilt():
    """At 8, as OLMo 1.7 does, which hardly any value reaches where softmax is not saturated."""
    with pytest.raises(NotProven, match=r"layers.0.self_attn: cached keys: differs"):
        substitute(tiny_model("olmo", clip_qkv=8.0))


@pytest.mark.parametrize("form", ["gelu", "gelu_tanh"])
def test_mlp_gets_the_closer_form_of_gelu(form):
    """A proof may take one for the other, of some weights: none of many is taken."""
    name = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}[form]
    model = tiny_model("llama", hidden_act=name, num_hidden_layers=12)
    decoder, _ = substitute(model)
    assert {layer.mlp.activation for layer in decoder.layers} == {form}


@pytest.mark.parametrize("form", ["gelu", "gelu_pytorch_tanh"])
def test_projected_mlp_gets_the_closer_form_of_gelu(form):
    """Of patches that GLM-4V merges."""
    mergers = [Glm4vVisionPatchMerger(32, 64, form).eval() for _ in range(12)]
    built = [ProjectedMlpRole().proven(enlarge(merger, 10))[0] for merger in mergers]
    assert {each.mlp.activation for each in built} == {form.replace("pytorch_", "")}


class Sharpened(nn.Module):
    """An RMSNorm by its attributes, but not by its results."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon
        self.norm = copy.deepcopy(norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * (1 + 0.01 * torch.tanh(x))


@pytest.mark.parametrize("gate", [nn.Tanh(), nn.Sequential(nn.Hardtanh(-100.0, 10.0), nn.SiLU())])
def test_experts_keep_a_gate_that_no_operator_has(gate):
    model = tiny_model("qwen2_moe")
    model.model.layers[1].mlp.experts.act_fn = gate
    _, findings = substitute(model)
    assert findings.kept == [] and findings.expected_nodes["_npu_grouped_matmul"] == 4
    # Those of shared experts, and of the first layer's.
    assert findings.expected_nodes["npu_swiglu"] == 3


def test_experts_with_different_results_are_refused():
    model = tiny_model("qwen2_moe")
    experts = model.model.layers[1].mlp.experts
    once = experts.forward
    experts.forward = lambda *args: once(*args) * 1.01
    with pytest.raises(NotProven, match=r"layers.1.mlp.experts: output: differs"):
        substitute(model)


def test_routers_are_fused_where_they_are_proven():
    model = tiny_model("mixtral")
    router = model.model.layers[1].mlp.gate
    choose = router.forward

    def scaled(hidden_states):
        logits, weights, experts = choose(hidden_states)
        return logits, weights * 1.01, experts

    router.forward = scaled
    decoder, findings = substitute(model)
    assert findings.expected_nodes["npu_moe_gating_top_k_softmax"] == 1
    assert [(k["site"], k["role"]) for k in findings.kept] == [("layers.1.mlp.gate", "router")]
    decoder.convert(torch.float16)
    assert all(layer.mlp.gate.weight.dtype == torch.float32 for layer in model.model.layers)


@pytest.mark.parametrize(
    ("kind", "changes", "operator", "expected"),
    [
        ("deepseek_v3", {}, "npu_moe_gating_top_k", {"norm_type": 1, "group_select_mode": 1}),
        ("deepseek_v2", {}, "npu_moe_gating_top_k", {"norm_type": 0, "group_select_mode": 0}),
        # All groups are kept: the best of the softmax.
        (
            "deepseek_v2",
            {"topk_method": "greedy"},
            "npu_moe_gating_top_k_softmax",
            {"normalised": False},
        ),
        ("ernie4_5_moe", {}, "npu_moe_gating_top_k", {"norm_type": 0, "normalised": True}),
        ("gpt_oss", {}, "npu_moe_gating_top_k_softmax", {"normalised": True}),
        # Sigmoids that are not divided by their sum: the operator's choice alone.
        ("deepseek_v3", {"norm_topk_prob": False}, "npu_moe_gating_top_k", {"norm_type": 1}),
        ("glm4_moe", {"norm_topk_prob": False}, "npu_moe_gating_top_k", {"norm_type": 1}),
    ],
)
def test_routers_are_recognised_by_what_they_compute(kind, changes, operator, expected):
    model = tiny_model(kind, **changes)
    router = next(module for module in model.modules() if is_router(module))
    tensors = [*router.named_parameters(), *router.named_buffers()]
    for bias in (tensor for name, tensor in tensors if "correction" in name):
        nn.init.normal_(bias, std=0.1)
    built, difference = RouterRole().proven(router)
    assert difference < 1e-5
    assert built.operator == operator
    assert {name: getattr(built, name) for name in expected} == expected


def test_a_bias_that_no_candidate_has_is_detected():
    model = tiny_model("mixtral")
    router = model.model.layers[0].mlp.gate
    hidden = torch.linspace(-1e-3, 1e-3, router.num_experts)  # neither a parameter nor a buffer
    choose = router.forward

    def biased(hidden_states):
        logits, _, _ = choose(hidden_states)
        scores = logits.softmax(-1)
        experts = (scores + hidden).topk(router.top_k).indices
        chosen = scores.gather(1, experts)
        return logits, chosen / chosen.sum(-1, keepdim=True), experts

    router.forward = biased
    with pytest.raises(NotProven, match="weights of experts: differs"):
        RouterRole().proven(router)


def test_norm_that_only_resembles_rmsnorm_is_kept():
    model = tiny_model("llama")
    layer = model.model.layers[1]
    layer.input_layernorm = Sharpened(layer.input_layernorm)
    decoder, findings = substitute(model)
    assert [(k["site"], k["role"]) for k in findings.kept] == [("layers.1.input_layernorm", "norm")]
    assert isinstance(decoder.layers[1].input_norm, KeptNorm)
    assert findings.expected_nodes["npu_add_rms_norm"] == 3


def test_wrong_epsilon_is_detected():
    model = tiny_model("llama")
    norm = model.model.norm
    norm.forward = type(norm).forward.__get__(copy.copy(norm))  # computes with the old epsilon
    norm.variance_epsilon = 1e-3
    _, findings = substitute(model)
    assert [k["site"] for k in findings.kept] == ["norm"]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.GemmaConfig(**SMALL, head_dim=16), "token embedding"),
        (
            transformers.GraniteConfig(**SMALL, residual_multiplier=0.5),
            "layers.0: layer output: differs",
        ),
        (
            transformers.GraniteConfig(**SMALL, logits_scaling=2.0),
            "final norm and logits: differs",
        ),
        (
            transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=97),
            "expected 'model' in the model .GPT2LMHeadModel",
        ),
    ],
    ids=["gemma", "granite residual", "granite logits", "gpt2"],
)
def test_architectures_with_different_results_are_not_rebuilt(config, reason):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(NotProven, match=reason):
        substitute(model)


def test_sliding_windows_are_detected_per_layer():
    changes = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    decoder, _ = substitute(tiny_model("qwen2", **changes))
    assert [layer.attention.window for layer in decoder.layers] == [None, 5]


def test_llama3_frequencies_are_taken_from_the_model():
    rope = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = tiny_model("llama", rope_parameters=rope)
    decoder, _ = substitute(model)
    assert torch.equal(decoder.rotary.frequencies.values, model.model.rotary_emb.inv_freq.repeat(2))


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_decoder_of_lazy_weights_holds_none_of_them(kind):
    model = wrap(tiny_model(kind).to(torch.bfloat16), None).model
    decoder, _ = substitute(model)
    decoder.convert(torch.float16)
    parameters = [p for p in decoder.parameters() if p.dim() > 1]
    assert {type(p) for p in parameters} == {LazyWeight}
    assert {p.dtype for p in parameters} == {torch.float16}


def test_probe_that_raises_is_not_a_proof():
    def fail() -> None:
        raise KeyError("cos")

    with pytest.raises(NotProven, match="the probe raised KeyError: 'cos'"):
        attempt(fail)


def test_nan_and_shape_mismatch_are_not_a_proof():
    with pytest.raises(NotProven, match="differs"):
        compare(torch.ones(2), torch.tensor([1.0, float("nan")]), "x")
    with pytest.raises(NotProven, match="expected shape"):
        compare(torch.ones(2), torch.ones(3), "x")

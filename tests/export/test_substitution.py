"""Unproven modules are not replaced, and models that cannot be exported are refused by name."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from onnxruntime_npu.exporter.checkpoint import wrap
from onnxruntime_npu.exporter.proof import NotProven, attempt, compare
from onnxruntime_npu.exporter.roles.norm import KeptNorm
from onnxruntime_npu.exporter.substitution import substitute
from onnxruntime_npu.exporter.weights.lazy_weight import LazyWeight

from .conftest import tiny_model

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


class Sharpened(torch.nn.Module):
    """An RMSNorm by its attributes, but not by its results."""

    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon
        self.norm = copy.deepcopy(norm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x) * (1 + 0.01 * torch.tanh(x))


def test_experts_with_different_results_are_refused():
    model = tiny_model("qwen2_moe")
    model.model.layers[1].mlp.experts.act_fn = torch.nn.Tanh()
    _, findings = substitute(model)
    assert findings.kept == [] and findings.expected_nodes["_npu_grouped_matmul"] == 4
    experts = model.model.layers[1].mlp.experts
    once = experts.forward
    experts.forward = lambda *args: once(*args) * 1.01
    with pytest.raises(NotProven, match=r"layers.1.mlp.experts: output: differs"):
        substitute(model)


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

"""Modules are replaced where outputs depend on them, and told apart by what they compute."""

from __future__ import annotations

import pytest
import torch
from onnxruntime_npu.exporter.module_replacement import convert_weights, replace_modules
from onnxruntime_npu.exporter.proof import Findings, NotProven
from onnxruntime_npu.exporter.roles.activation import ActivationRole, is_activation
from onnxruntime_npu.exporter.roles.scaled_experts import ScaledExpertsRole, is_scaled_experts
from onnxruntime_npu.exporter.roles.stacked_experts import StackedExpertsRole, is_stacked_experts
from onnxruntime_npu.opdef import torch_library
from torch import nn
from transformers.activations import ACT2FN

from .conftest import tiny_model
from .test_seq2seq import tiny_model as seq2seq_model


@pytest.mark.parametrize(
    ("name", "operator", "approximate"),
    [
        ("gelu", "npu_gelu", "none"),
        ("gelu_new", "npu_gelu", "tanh"),
        ("gelu_pytorch_tanh", "npu_gelu", "tanh"),
        ("quick_gelu", "npu_fast_gelu", None),
    ],
)
def test_every_form_of_gelu_gets_its_own_operator(name, operator, approximate):
    torch_library.register()
    assert is_activation(ACT2FN[name])
    built, _ = ActivationRole().proven(ACT2FN[name])
    assert built.operator == operator
    assert getattr(built, "approximate", None) == approximate


def test_clipped_gelu_is_no_gelu():
    torch_library.register()
    with pytest.raises(NotProven, match="activation: differs"):
        ActivationRole().proven(ACT2FN["gelu_10"])


def test_experts_of_stacked_matrices_are_grouped_matmuls():
    torch_library.register()
    model = tiny_model("dbrx")
    experts = model.transformer.blocks[0].ffn.experts
    assert is_stacked_experts(experts)
    assert not is_stacked_experts(model.transformer.blocks[0].ffn)
    built, _ = StackedExpertsRole().proven(experts)
    x = torch.randn(2, 3, 64)
    chosen = torch.tensor([[0, 3], [3, 1], [2, 0], [1, 2], [3, 0], [0, 1]])
    weights = torch.rand(6, 2)
    torch.testing.assert_close(built(x, chosen, weights), experts(x, chosen, weights))


@pytest.mark.parametrize("chosen", [1, 3, 4])
def test_experts_of_scaled_tokens_compute_those_that_chose_them(chosen):
    torch_library.register()
    mlp = tiny_model("llama4_text", num_experts_per_tok=chosen).model.layers[1].feed_forward
    assert is_scaled_experts(mlp) and not is_scaled_experts(mlp.experts)
    built, _ = ScaledExpertsRole().proven(mlp)
    x = torch.randn(2, 9, 64)
    for actual, expected in zip(built(x), mlp(x), strict=True):
        torch.testing.assert_close(actual, expected)


def test_experts_that_scale_their_results_are_not_proven():
    """Scaling tokens instead is not the same: the gate is not linear."""
    torch_library.register()
    mlp = tiny_model("llama4_text").model.layers[1].feed_forward
    experts = mlp.experts

    def forward(x):
        scores, logits = mlp.router(x.flatten(0, 1))
        rows = x.flatten(0, 1).repeat(scores.shape[1], 1)
        results = experts(rows) * scores.t().reshape(-1, 1)
        routed = results.unflatten(0, (scores.shape[1], -1)).sum(0)
        return mlp.shared_expert(x.flatten(0, 1)) + routed, logits

    mlp.forward = forward
    with pytest.raises(NotProven, match="output: differs"):
        ScaledExpertsRole().proven(mlp)


def test_weights_that_a_model_keeps_exact_are_found_by_parts_of_their_names():
    model = tiny_model("inkling2_text")
    layer = model.model.layers[1]
    layer.mlp.gate, gate = nn.Module(), layer.mlp.gate
    layer.mlp.gate.original = gate  # as a replaced router keeps its module
    convert_weights(model, torch.bfloat16)
    sliding = model.model.layers[0].self_attn
    assert gate.weight.dtype == sliding.k_sconv.conv1d.weight.dtype == torch.float32
    assert sliding.k_proj.weight.dtype == torch.bfloat16


def test_matrices_that_experts_cannot_divide_are_not_proven():
    experts = tiny_model("dbrx").transformer.blocks[0].ffn.experts
    experts.num_experts = 5
    with pytest.raises(NotProven, match="rows for 5 experts"):
        StackedExpertsRole().proven(experts)


class Model(nn.Module):
    """Calls one activation by two names, another for a result nobody uses, and a third never."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.unused, self.never = nn.GELU(), nn.GELU(), nn.GELU()
        self.again = self.twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.unused(x)
        return self.again(self.twice(x) + x)


def activation_role_of(module):
    return ("activation", ActivationRole()) if is_activation(module) else None


def test_modules_are_recorded_for_each_call_that_outputs_depend_on():
    torch_library.register()
    model, findings = Model(), Findings()

    x = torch.randn(3, 4)
    expected = model(x)
    assert replace_modules(model, activation_role_of, lambda m: (m(x),), findings) == []
    assert findings.expected_nodes == {"npu_gelu": 2} and findings.kept == []
    assert isinstance(model.unused, nn.GELU) and isinstance(model.never, nn.GELU)
    assert model.twice is model.again and not isinstance(model.twice, nn.GELU)
    torch.testing.assert_close(model(x), expected)


class FirstCyclesWithoutGradients(nn.Module):
    """A part in cycles of which training differentiates the last one only."""

    def __init__(self) -> None:
        super().__init__()
        self.act_fn = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.act_fn(self.act_fn(x))
        return self.act_fn(x)


def test_calls_without_gradients_are_recorded():
    torch_library.register()
    model, findings = FirstCyclesWithoutGradients(), Findings()

    x = torch.randn(3, 4)
    assert replace_modules(model, activation_role_of, lambda m: (m(x),), findings) == []
    assert findings.expected_nodes == {"npu_gelu": 3}


class Feedforward(nn.Module):
    """A replaced whole with a replaceable part."""

    def __init__(self) -> None:
        super().__init__()
        self.act_fn = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act_fn(x)


def test_parts_of_a_replaced_module_are_not_recorded():
    torch_library.register()

    class Whole(ActivationRole):
        def report(self, findings, site, built, difference):
            findings.replaced("npu_fast_gelu", difference)

    def role_of(module):
        if isinstance(module, Feedforward):
            return "mlp", Whole()
        return activation_role_of(module)

    model, findings = nn.Sequential(Feedforward()), Findings()
    x = torch.randn(3, 4)
    assert replace_modules(model, role_of, lambda m: (m(x),), findings) == []
    assert findings.expected_nodes == {"npu_fast_gelu": 1}


# Sinusoidal positions, which are added to embeddings; rotary frequencies.
@pytest.mark.parametrize("kind", ["xglm", "m2m_100", "llama"])
def test_buffers_get_the_dtype_that_transformers_gives_them(kind):
    model = seq2seq_model(kind) if kind == "m2m_100" else tiny_model(kind)
    made = type(model)._from_config(model.config, dtype=torch.bfloat16)
    expected = {name: buffer.dtype for name, buffer in made.named_buffers()}
    assert (torch.bfloat16 in expected.values()) == (kind != "llama")
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    convert_weights(model, torch.bfloat16)
    after = dict(model.named_buffers())
    assert {name: buffer.dtype for name, buffer in after.items()} == expected
    for name, buffer in before.items():
        assert torch.equal(after[name], buffer.to(expected[name]))

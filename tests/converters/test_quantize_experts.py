"""Quantised experts of transformers' models: schemes, arrangements of weights, exports."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import onnxruntime as ort
import onnxruntime_npu
import pytest
import torch
from onnxruntime_npu.converters import SCHEMES, quantize_weights
from onnxruntime_npu.converters.quantized_experts import QuantizedExperts
from transformers import GptOssConfig, MixtralConfig, MixtralForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.nemotron_h.configuration_nemotron_h import NemotronHConfig
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts

EXPERTS, HIDDEN, INNER, SLOTS = 4, 128, 96, 2


def _mixtral() -> torch.nn.Module:
    return MixtralExperts(
        MixtralConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS)
    )


def _gpt_oss() -> torch.nn.Module:
    return GptOssExperts(
        GptOssConfig(hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS)
    )


def _nemotron() -> torch.nn.Module:
    config = NemotronHConfig(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, n_routed_experts=EXPERTS
    )
    return NemotronHExperts(config)


def _filled(make: Callable[[], torch.nn.Module], dtype: torch.dtype) -> torch.nn.Module:
    """Experts with normal weights, of which every value has this dtype's precision."""
    experts = make()
    experts.config._experts_implementation = "eager"
    generator = torch.Generator().manual_seed(1)
    for parameter in experts.parameters():
        values = torch.randn(parameter.shape, generator=generator) / 10
        parameter.data = values.to(dtype)
    return experts.eval()


def _routed(tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(tokens, HIDDEN, generator=generator).to(dtype)
    weights, chosen = torch.randn(tokens, EXPERTS, generator=generator).softmax(-1).topk(SLOTS)
    return x, chosen, weights.to(dtype)


def _error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


# Rounding to b bits errs by about 0.7 % for 8 bits and 11 % for 4; here in both layers.
BOUNDS = {"w8a16": 0.015, "w4a16": 0.17, "w4a8": 0.17, "w8a8": 0.03, "w8a8_dynamic": 0.03}


@pytest.mark.parametrize("device", ["cpu", "npu"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantised_experts_are_near_the_float_ones(scheme: str, device: str) -> None:
    experts, (x, chosen, weights) = _filled(_mixtral, torch.bfloat16), _routed(9, torch.bfloat16)
    with torch.no_grad():
        expected = copy.deepcopy(experts).double()(x.double(), chosen, weights.double())
        calibration = {"calibration": []} if scheme == "w8a8" else {}
        quantised = quantize_weights(experts, scheme, group_size=32, **calibration)
        assert isinstance(quantised, QuantizedExperts)
        assert not list(quantised.parameters())
        y = quantised.to(device)(*(t.to(device) for t in (x, chosen, weights))).cpu()
    assert y.dtype == torch.bfloat16
    assert _error(y, expected) < BOUNDS[scheme] + 0.01  # bfloat16 errs by half a per cent


@pytest.mark.parametrize("make", [_mixtral, _gpt_oss, _nemotron])
@pytest.mark.parametrize("scheme", ["w8a16", "w8a8_dynamic"])
def test_every_arrangement_of_weights_is_taken(
    make: Callable[[], torch.nn.Module], scheme: str
) -> None:
    experts, (x, chosen, weights) = _filled(make, torch.float16), _routed(13, torch.float16)
    with torch.no_grad():
        expected = copy.deepcopy(experts).double()(x.double(), chosen, weights.double())
        y = quantize_weights(experts, scheme)(x, chosen, weights)
    assert _error(y, expected) < BOUNDS[scheme]


@pytest.mark.parametrize("scheme", ["w4a16", "w4a8", "w8a8_dynamic"])
def test_quantised_experts_are_exported(scheme: str, tmp_path: Path) -> None:
    experts = quantize_weights(_filled(_mixtral, torch.float16), scheme, group_size=32)
    path, tokens = tmp_path / "experts.onnx", torch.export.Dim("tokens")
    names = ("hidden_states", "top_k_index", "top_k_weights")
    report = onnxruntime_npu.export(
        experts, _routed(5, torch.float16), path,
        dynamic_shapes={name: {0: tokens} for name in names},
    )  # fmt: skip
    assert report.nodes["npu::NPUGroupedMatmul"] == 2
    session = ort.InferenceSession(path, providers=["NPUExecutionProvider"])
    for count in (1, 5, 40):
        given = _routed(count, torch.float16)
        with torch.no_grad():
            expected = experts(*given).double()
        feeds = {name: t.numpy() for name, t in zip(names, given, strict=True)}
        (actual,) = session.run(None, feeds)
        # Between the layers, values are rounded to float16, and a few of them may then fall on the
        # other side of a half, a step of 1 / 127 of a row's largest value. With one token, three
        # of 192 values err by 0.4 %.
        assert _error(torch.from_numpy(actual), expected) < 0.01


def test_a_routed_model_is_quantised_as_a_whole() -> None:
    config = MixtralConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_local_experts=EXPERTS, vocab_size=100,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = MixtralForCausalLM(config).to(torch.bfloat16).eval()
    tokens = torch.randint(0, 100, (2, 11))
    with torch.no_grad():
        expected = model(tokens).logits.double()
        quantised = quantize_weights(model, "w8a16")
        actual = quantised(tokens).logits
    assert quantised is model
    blocks = [m for m in model.modules() if isinstance(m, QuantizedExperts)]
    assert len(blocks) == 2
    assert [n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)] == ["lm_head"]
    # Two layers, each of which errs by a per cent and rounds its results to bfloat16.
    assert _error(actual, expected) < 0.04


def test_int4_by_int8_refuses_experts_with_bias() -> None:
    with pytest.raises(ValueError, match="expected experts without bias for w4a8, got one"):
        quantize_weights(_filled(_gpt_oss, torch.float16), "w4a8")

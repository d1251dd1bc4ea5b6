"""Exports with quantised weights, against transformers with weights rounded by hand."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.exporter import export_causal_lm

from .conftest import CONTINUATIONS, PROMPTS, expected_logits, tiny_model
from .test_causal_lm import PROVIDERS, forced_logits

# Joint query, key and value; output; joint gate and up; down. Experts are not among them.
PROJECTIONS = {"llama": 4 * 2, "mixtral": 2 * 2}


def grid(weight: torch.Tensor, bits: int) -> torch.Tensor:
    """Weights [out, in] on a grid of `bits` for each output: any rounding of these is exact.

    The largest integer occurs in every group of 32 inputs: their scales are that of the row.
    """
    most = 2 ** (bits - 1) - 1
    scale = weight.abs().amax(-1, keepdim=True) / most
    # Scales that float16 has.
    scale = torch.exp2(torch.ceil(torch.log2(scale)))
    integers = torch.round(weight / scale).clamp(-most, most)
    integers[..., ::32] = most
    return integers * scale


def on_grid(kind: str, bits: int) -> torch.nn.Module:
    """A tiny model whose projections and experts are integers times a scale."""
    model = tiny_model(kind)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            quantised = parameter.dim() >= 2 and not any(
                part in name for part in ("embed", "lm_head", "gate.weight")
            )
            if quantised:
                parameter.copy_(grid(parameter, bits))
    return model


def errors(model, directory, provider):
    """The differences from the model's logits in float32."""
    actual = forced_logits(directory, provider, PROMPTS, CONTINUATIONS)
    exact = [expected_logits(model, *pair) for pair in zip(PROMPTS, CONTINUATIONS, strict=True)]
    return np.concatenate([a - e for a, e in zip(actual, exact, strict=True)])


def halved_errors(model):
    """Those of the model in float16."""
    halved = copy.deepcopy(model).half()
    pairs = list(zip(PROMPTS, CONTINUATIONS, strict=True))
    return np.concatenate([expected_logits(halved, *p) - expected_logits(model, *p) for p in pairs])


def rms(values):
    return float(np.sqrt((values**2).mean()))


@pytest.mark.parametrize(
    ("kind", "cache", "scheme"),
    [
        ("mixtral", "dynamic", "w4a16"),
        pytest.param("mixtral", "dynamic", "w8a16", marks=pytest.mark.slow),
        pytest.param("llama", "static", "w4a16", marks=pytest.mark.slow),
        pytest.param("llama", "static", "w8a16", marks=pytest.mark.slow),
    ],
)
def test_weights_on_the_grid_stay_what_they_are(tmp_path, kind, cache, scheme):
    model = on_grid(kind, int(scheme[1]))
    options = {"dtype": "float16", "quant": scheme, "cache": cache}
    report = export_causal_lm(model, tmp_path, check=False, **options)
    assert report.quant == scheme and report.gaps == []
    replaced = report.replaced["npu_weight_quant_batchmatmul"]
    assert replaced["emitted"] == PROJECTIONS[kind]
    assert replaced["worst_relative_difference"] is None  # rounding is no proof of equality
    for provider in PROVIDERS:
        # Only float16 rounds, as it does in transformers.
        assert rms(errors(model, tmp_path, provider)) <= 2 * rms(halved_errors(model))


def test_calibrated_int4_errs_less(tmp_path, exported):
    model, plain, _ = exported("llama", dtype="bfloat16", quant="w4a16")
    calibration = np.random.default_rng(8).integers(0, 97, (20, 100)).tolist()
    report = export_causal_lm(
        model, tmp_path, dtype="bfloat16", quant="w4a16", calibration=calibration, check=False
    )
    assert report.gaps == []
    ours, theirs = (rms(errors(model, place, PROVIDERS[0])) for place in (tmp_path, plain))
    # Activations of a random model are hardly correlated, so that little cancels out.
    assert ours < 0.95 * theirs


def test_calibration_is_divided_into_rows_of_the_context(tmp_path):
    model = tiny_model("gpt2", max_position_embeddings=16)  # whose table has no more positions
    calibration = [[*range(3, 40)], [5], []]
    report = export_causal_lm(model, tmp_path, quant="w8a8", calibration=calibration, check=False)
    assert report.replaced["npu_quant_matmul"]["emitted"] > 0


@pytest.mark.parametrize(
    "scheme", ["w4a8", *(pytest.param(s, marks=pytest.mark.slow) for s in ("w8a8", "w8a8_dynamic"))]
)
def test_integer_activations_add_their_rounding(tmp_path, scheme):
    model = on_grid("llama", int(scheme[1]))
    calibration = [p + c for p, c in zip(PROMPTS, CONTINUATIONS, strict=True)]
    options = {"calibration": calibration} if scheme == "w8a8" else {}
    options["check"] = False
    report = export_causal_lm(model, tmp_path, dtype="float16", quant=scheme, **options)
    assert report.gaps == []
    rounding = "npu_quantize" if scheme == "w8a8" else "npu_dynamic_quant"
    assert report.replaced[rounding]["emitted"] == PROJECTIONS["llama"]
    rounded = copy.deepcopy(model)

    def as_integers(module, inputs):
        """Round each row to 127 steps of its max."""
        step = inputs[0].abs().amax(-1, keepdim=True) / 127
        return (torch.round(inputs[0] / step) * step,)

    for name, layer in rounded.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layer.register_forward_pre_hook(as_integers)
    pairs = list(zip(PROMPTS, CONTINUATIONS, strict=True))
    by_hand = [expected_logits(rounded, *p) - expected_logits(model, *p) for p in pairs]
    allowed = rms(np.concatenate(by_hand)) + rms(halved_errors(model))
    for provider in PROVIDERS:
        # A scale of all rows, from calibration, is coarser than one for each row.
        factor = 4 if scheme == "w8a8" else 2
        assert 0 < rms(errors(model, tmp_path, provider)) <= factor * allowed


# Of granite query, key, value and output projections are torch's, gate and up are joined. All four
# projections of gpt2 are Conv1D of transformers, whose weights are [in, out]; those of falcon are
# of a class of its own.
@pytest.mark.parametrize(
    ("kind", "projections"),
    [
        pytest.param("granite", 6 * 2, marks=pytest.mark.slow),
        ("gpt2", 4 * 2),
        ("falcon", 4 * 2),
        pytest.param("falcon-alibi", 4 * 2, marks=pytest.mark.slow),
    ],
)
def test_original_form_quantises_its_linear_layers(tmp_path, kind, projections):
    model = tiny_model(kind)
    report = export_causal_lm(model, tmp_path, dtype="bfloat16", quant="w8a16", check=False)
    assert report.gaps == []
    assert report.replaced["npu_weight_quant_batchmatmul"]["emitted"] == projections
    differences = errors(model, tmp_path, PROVIDERS[0])
    scale = max(np.abs(expected_logits(model, PROMPTS[0], CONTINUATIONS[0])).max(), 1e-9)
    assert rms(differences) <= 0.05 * scale


@pytest.mark.parametrize("scheme", ["w8a8", pytest.param("w8a8_dynamic", marks=pytest.mark.slow)])
def test_projections_of_one_tensor_share_its_rounding(tmp_path, scheme):
    options = {"quant": scheme, "calibration": [PROMPTS[0]]}
    model = tiny_model("granite", num_hidden_layers=1)
    report = export_causal_lm(model, tmp_path, check=False, **options)
    assert report.gaps == []
    rounding = "npu_quantize" if scheme == "w8a8" else "npu_dynamic_quant"
    # Query, key and value share one; output, gate and up together, and down have one each.
    assert report.replaced[rounding]["emitted"] + len(report.per_token) == 4
    assert report.replaced["npu_quant_matmul"]["emitted"] == 6


@pytest.mark.parametrize(  # rebuilt, and in its own form
    "kind", ["llama", pytest.param("granite", marks=pytest.mark.slow)]
)
def test_head_and_activations_are_rounded_if_asked_for(tmp_path, kind):
    model = tiny_model(kind)
    options = {"quant": "w8a16", "quant_head": True, "inner_precise": 1, "check": False}
    report = export_causal_lm(model, tmp_path, dtype="bfloat16", **options)
    assert report.gaps == []
    projections = {"llama": PROJECTIONS["llama"], "granite": 6 * 2}[kind]
    nodes = report.nodes["npu::NPUWeightQuantBatchMatmulV2"]
    assert nodes == report.replaced["npu_weight_quant_batchmatmul"]["emitted"] == projections + 1
    graph = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph
    linear = [node for node in graph.node if node.op_type == "NPUWeightQuantBatchMatmulV2"]
    inner = [a.i for node in linear for a in node.attribute if a.name == "inner_precise"]
    assert inner == [1] * nodes
    exact = expected_logits(model, PROMPTS[0], CONTINUATIONS[0])
    assert rms(errors(model, tmp_path, PROVIDERS[0])) <= 0.05 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant": "w8a8_dynamic", "inner_precise": 1}, "expected inner_precise 0, or 1 with"),
        ({"quant_head": True}, "expected quant with quant_head, got quant='none'"),
        ({"quant": "w8a16"}, "expected dtype float16 or bfloat16 with quant='w8a16'"),
        ({"quant": "w8a8", "dtype": "bfloat16"}, "expected calibration with quant='w8a8'"),
        ({"calibration": [[1, 2]]}, "expected calibration with quant of w4a16, w8a8, w8a8_dynamic"),
        ({"static_error": 0.1}, "expected static_error of at least 0 with quant='w8a8'"),
        (
            {"quant": "w4a16", "calibration": [[1, 97]], "dtype": "bfloat16"},
            "expected calibration of tokens from 0 to 96",
        ),
        (
            {"quant": "w8a8_dynamic", "calibration": [[]]},
            "expected calibration of at least one token, got none",
        ),
        (
            {"quant": "w8a8", "calibration": ["text"], "dtype": "bfloat16"},
            "expected calibration of token ids for a model without a tokenizer",
        ),
    ],
)
def test_wrong_combinations_are_refused(tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        export_causal_lm(tiny_model("llama"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_model_without_calibration_may_overflow(tmp_path):
    model = tiny_model("llama", num_hidden_layers=1)
    mlp = model.model.layers[0].mlp
    for layer in (mlp.gate_proj, mlp.up_proj):
        layer.weight.data *= 1e4  # their product, the input of down_proj, overflows in float16
    report = export_causal_lm(model, tmp_path, dtype="float16", quant="w8a8_dynamic", check=False)
    assert report.replaced["npu_quant_matmul"]["emitted"] == PROJECTIONS["llama"] // 2


def test_layers_that_do_not_fill_words_stay_floats(tmp_path):
    model = tiny_model("llama", intermediate_size=113, num_hidden_layers=1)
    report = export_causal_lm(model, tmp_path, dtype="bfloat16", quant="w4a8", check=False)
    assert {entry["site"].rsplit(".", 1)[1] for entry in report.kept} == {"down"}
    assert all("113 x 64" in entry["reason"] for entry in report.kept)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["w8a16", "w8a8"])
def test_layers_that_no_run_calls_are_left_out(tmp_path, scheme):
    """A decoder without its encoder has those of attention to it, which are not exported."""
    model = tiny_model("bart", num_hidden_layers=1, decoder_layers=1)
    options = {"calibration": [[1, 2, 3]]} if scheme == "w8a8" else {"dtype": "float16"}
    report = export_causal_lm(model, tmp_path, quant=scheme, check=False, **options)
    assert report.gaps == []
    operator = "npu_quant_matmul" if scheme == "w8a8" else "npu_weight_quant_batchmatmul"
    assert report.replaced[operator]["emitted"] == 6


def test_layers_of_another_kind_stay_floats(tmp_path):
    """DeepSeek-V4's grouped projection is a Linear whose forward pass is not Linear's own."""
    report = export_causal_lm(
        tiny_model("deepseek_v4"), tmp_path / "model", dtype="bfloat16", quant="w8a16", check=False
    )
    reasons = {part["site"].rpartition(".")[2]: part["reason"] for part in report.kept}
    assert reasons["o_a_proj"] == "not quantised: its forward pass is its own"
    exact = "not quantised: the model keeps it more exact than others"
    assert reasons["weights_proj"] == reasons["gate_proj"] == exact
    assert report.gaps == [] and report.replaced["npu_weight_quant_batchmatmul"]["emitted"] > 0

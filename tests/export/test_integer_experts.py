"""Experts of quantised checkpoints, exported with the integers that they hold."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnxruntime_npu.converters.quantized_experts import is_experts
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.weights.lazy_weight import value_of
from safetensors.torch import load_file, save_file

from .conftest import tiny_model
from .stored_integers import (
    FORMATS,
    GROUP,
    Quantised,
    as_gptq,
    as_int8_tensors,
    experts_checkpoint,
    save,
)
from .test_causal_lm import PROVIDERS
from .test_quantized import errors, halved_errors, rms


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("qwen3_moe", "gptq"),
        pytest.param("mixtral", "awq", marks=pytest.mark.slow),  # whose layers have other names
        pytest.param("deepseek_v2", "pack-quantized", marks=pytest.mark.slow),
    ],
)
def test_experts_are_exported_as_they_are(tmp_path, kind, name):
    model = experts_checkpoint(tmp_path, kind, name)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    layers = sum(is_experts(module) for module in model.modules())
    assert report.gaps == [] and report.integers == {f"int4, groups of {GROUP}": 2 * layers}
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    types = {each.name: each.data_type for each in graph.initializer}
    grouped = [node for node in graph.node if node.op_type == "NPUGroupedMatmul"]
    assert [types[node.input[1]] for node in grouped] == [onnx.TensorProto.INT32] * (2 * layers)
    for provider in PROVIDERS:
        # Only float16 rounds, as it does in transformers.
        assert rms(errors(model, tmp_path / "out", provider)) <= 2 * rms(halved_errors(model))


def orders(_pack):
    """Each layer in an order of its own."""
    rng = np.random.default_rng(7)
    return lambda w: as_gptq(w, act_order=True, rng=rng)


def one_order(_pack):
    """All layers in one order, as gate and up projections have it."""
    return lambda w: as_gptq(w, act_order=True, rng=np.random.default_rng(7))


@pytest.mark.parametrize("changed", [lambda pack: pack, one_order, orders])
def test_floats_of_experts_are_what_their_integers_stand_for(tmp_path, changed):
    model = experts_checkpoint(tmp_path, "qwen3_moe", "gptq", changed)
    loaded = load_checkpoint(tmp_path / "source")
    wanted, actual = model.state_dict(), loaded.model.state_dict()
    assert wanted.keys() == actual.keys()
    assert all(torch.equal(value_of(actual[name]), wanted[name]) for name in wanted)
    assert bool(loaded.left) == (changed is orders)


def test_experts_in_another_order_are_taken_as_floats(tmp_path):
    model = experts_checkpoint(tmp_path, "qwen3_moe", "gptq", one_order)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.integers == {}
    assert "taken as floats: no operator multiplies experts of reordered int4" in str(report.kept)
    assert rms(errors(model, tmp_path / "out", PROVIDERS[0])) <= 2 * rms(halved_errors(model))


def test_experts_of_groups_with_integer_activations(tmp_path):
    """No operator multiplies them: the integers are kept, and activations stay floats."""
    model = experts_checkpoint(tmp_path, "qwen3_moe", "pack-quantized")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    for group in config["quantization_config"]["config_groups"].values():
        group["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True}
    path.write_text(json.dumps(config))
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.gaps == [] and report.integers == {f"int4, groups of {GROUP}": 4}
    why = f"experts of int4, groups of {GROUP}, dynamic int8 activations"
    reasons = [part["reason"] for part in report.kept if part["role"] == "experts"]
    assert reasons == [f"activations stay floats: no operator multiplies {why}"] * 2
    assert rms(errors(model, tmp_path / "out", PROVIDERS[0])) <= 2 * rms(halved_errors(model))


def test_experts_of_integer_activations(tmp_path):
    """Weights have a scale for each output, activations one for each token."""
    config, *_ = FORMATS["pack-quantized"]
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    inputs = {"num_bits": 8, "type": "int", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    config = {**config, "format": "int-quantized", "config_groups": {"group_0": group}}
    tiny_model("qwen3_moe").save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32")
    floats, stored, rng = load_file(tmp_path / "model.safetensors"), {}, np.random.default_rng(3)
    for key in [key for key in floats if ".experts." in key]:
        out, size = floats[key].shape
        w = Quantised(out, size, 8, rng, group=size, symmetric=True)
        layer = key.removesuffix(".weight")
        stored |= {f"{layer}.{name}": value for name, value in as_int8_tensors(w).items()}
    save(tmp_path, model, stored, config)
    report = export_causal_lm(tmp_path, tmp_path / "out", quant="keep", check=False)
    assert report.gaps == [] and report.integers == {"int8, dynamic int8 activations": 4}
    assert report.replaced["npu_dynamic_quant"]["emitted"] == 4


@pytest.mark.parametrize("left", ["experts.2.up_proj", "down_proj"])
def test_some_of_the_experts_may_be_floats(tmp_path, left):
    """As recipes leave out some layers."""
    model = experts_checkpoint(tmp_path, "qwen3_moe", "gptq")
    floats = load_file(tmp_path / "floats" / "model.safetensors")
    file = tmp_path / "source" / "model.safetensors"
    tensors = load_file(file)
    layers = {key.rpartition(".")[0] for key in tensors if left in key and ".experts." in key}
    kept = {key: t for key, t in tensors.items() if key.rpartition(".")[0] not in layers}
    save_file(kept | {f"{n}.weight": floats[f"{n}.weight"] for n in layers}, file, {"format": "pt"})
    loaded = load_checkpoint(tmp_path / "source")
    wanted, actual = model.state_dict(), loaded.model.state_dict()
    assert wanted.keys() == actual.keys()
    assert all(torch.equal(value_of(actual[name]), wanted[name]) for name in wanted)
    assert set(loaded.left.values()) == {("experts", "the file has floats of some of them")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.1.mlp.experts.0.up_proj.qweight"), "layers of 4 experts"),
        (
            lambda t: t.update(
                {"model.layers.0.mlp.experts.1.up_proj.qweight": torch.zeros(3, 3).int()}
            ),
            r"layers.0.mlp.experts.1.up_proj: expected qweight",
        ),
    ],
)
def test_damaged_experts_are_refused(tmp_path, change, message):
    experts_checkpoint(tmp_path, "qwen3_moe", "gptq")
    file = tmp_path / "source" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ExportError, match=message) as caught:
        load_checkpoint(tmp_path / "source")
    assert "\n" not in str(caught.value)

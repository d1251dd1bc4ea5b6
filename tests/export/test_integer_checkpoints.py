"""Quantised checkpoints of other tools, exported with the integers that they hold."""

from __future__ import annotations

import copy
import json

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.exporter import export_causal_lm, export_encoder
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.integers.bits import unpacked
from onnxruntime_npu.exporter.integers.integer_weight import IntegerWeight, joined
from onnxruntime_npu.exporter.integers.stored_linear import StoredLinear
from onnxruntime_npu.exporter.weights.lazy_weight import value_of
from safetensors.torch import load_file, save_file

from .conftest import tiny_model
from .stored_integers import (
    FORMATS,
    GROUP,
    Quantised,
    as_int8_tensors,
    as_stored,
    checkpoint,
    projections,
    save,
    tensors_config,
)
from .test_causal_lm import PROVIDERS
from .test_encoder import run, sample_for, session_of, tiny_encoder
from .test_image_text import tiny_model as image_text_model
from .test_quantized import errors, halved_errors, rms


@pytest.mark.parametrize(
    ("kind", "name"),
    # The projections of gpt2 are Conv1D of transformers, whose weights are [in, out].
    [*(("llama", name) for name in FORMATS), ("gpt2", "gptq-act-order"), ("gpt2", "awq")],
)
def test_floats_of_a_checkpoint_are_what_its_integers_stand_for(tmp_path, kind, name):
    model = checkpoint(tmp_path, kind, name)
    loaded = load_checkpoint(tmp_path)
    layers = projections(model)
    assert len(layers) == {"llama": 7, "gpt2": 4}[kind] * 2
    for layer_name, layer in layers.items():
        actual = loaded.model.get_submodule(layer_name)
        assert isinstance(actual, StoredLinear)
        assert torch.equal(actual.weight, as_stored(layer))
        assert (actual.bias is None) == (layer.bias is None)
        assert layer.bias is None or torch.equal(actual.bias, layer.bias)
    head = loaded.model.lm_head
    assert not isinstance(head, StoredLinear)
    assert torch.equal(value_of(head.weight), model.lm_head.weight)
    assert not hasattr(loaded.model.config, "quantization_config")


@pytest.mark.parametrize("name", ["gptq", "gptq-act-order", "awq", "pack-quantized"])
def test_last_group_may_be_smaller(tmp_path, name):
    """Groups of 32 of 112 inputs: as many as groups of 28 would be."""
    model = checkpoint(tmp_path, "llama", name, group=32)
    config = json.loads((tmp_path / "config.json").read_text())
    quantised = config["quantization_config"]
    for part in (quantised, *(g["weights"] for g in quantised.get("config_groups", {}).values())):
        part["group_size"] = 32
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_checkpoint(tmp_path)
    for layer_name, layer in projections(model).items():
        assert torch.equal(loaded.model.get_submodule(layer_name).weight, layer.weight)


def test_groups_of_a_layer_may_be_of_its_own_rule(tmp_path):
    """GPTQ has a group for each input, and config.json one size for most layers."""
    model = checkpoint(tmp_path, "llama", "gptq", group=40)
    loaded = load_checkpoint(tmp_path)
    for layer_name, layer in projections(model).items():
        assert torch.equal(loaded.model.get_submodule(layer_name).weight, layer.weight)


@pytest.mark.parametrize("kind", ["llama", "llama-tied"])
def test_head_may_have_integers_of_its_own(tmp_path, kind):
    """Some tools quantise the head, also of a model whose config.json ties it to the embedding."""
    model, rng = tiny_model(kind, vocab_size=96), np.random.default_rng(3)
    config, bits, pack = FORMATS["gptq"]
    w = Quantised(96, 64, bits, rng)
    stored = {f"lm_head.{key}": value for key, value in pack(w).items()}
    save(tmp_path, model, stored, config)
    loaded = load_checkpoint(tmp_path).model
    assert torch.equal(loaded.lm_head.weight, w.weight)
    embedding = value_of(loaded.get_input_embeddings().weight)
    assert torch.equal(embedding, model.get_input_embeddings().weight)


@pytest.mark.parametrize(
    ("name", "file", "described"),
    [
        ("gptq", "quantize_config.json", {"bits": 4, "group_size": 32, "desc_act": False}),
        ("awq", "quant_config.json", {"w_bit": 4, "q_group_size": 32, "version": "GEMM"}),
    ],
)
def test_description_may_be_a_file_of_its_own(tmp_path, name, file, described):
    """As before config.json had quantization_config; it matters where the last group is smaller."""
    model = checkpoint(tmp_path, "llama", name, group=32)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / file).write_text(json.dumps(described))
    loaded = load_checkpoint(tmp_path)
    assert loaded.quantization == name and loaded.warnings == []
    for layer_name, layer in projections(model).items():
        assert torch.equal(loaded.model.get_submodule(layer_name).weight, layer.weight)
    assert not hasattr(loaded.model.config, "quantization_config")


def test_description_of_other_weights_is_left_out(tmp_path):
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    (tmp_path / "quantize_config.json").write_text('{"bits": 4, "group_size": 32}')
    loaded = load_checkpoint(tmp_path)
    assert loaded.quantization is None and loaded.warnings == []
    assert torch.equal(value_of(loaded.model.lm_head.weight), model.lm_head.weight)


def test_quantised_text_part_of_a_model_of_images(tmp_path):
    """Layers have other names in the file, and the description is that of the text part."""
    config, bits, pack = FORMATS["gptq"]
    rng = np.random.default_rng(3)
    model = image_text_model("gemma3")
    model.save_pretrained(tmp_path / "floats")
    stored, floats = {}, load_file(tmp_path / "floats" / "model.safetensors")
    for key in [key for key in floats if "language_model" in key and "_proj." in key]:
        w = Quantised(*floats[key].shape, bits, rng)
        layer = key.removesuffix(".weight")
        stored |= {f"{layer}.{name}": value for name, value in pack(w).items()}
        floats[key] = w.weight
    save(tmp_path / "source", model, stored, config)
    settings = json.loads((tmp_path / "source" / "config.json").read_text())
    settings["text_config"]["quantization_config"] = settings.pop("quantization_config")
    (tmp_path / "source" / "config.json").write_text(json.dumps(settings))
    save_file(floats, tmp_path / "floats" / "model.safetensors", {"format": "pt"})
    wanted = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "floats")
    loaded = load_checkpoint(tmp_path / "source")
    layers = {n: m for n, m in loaded.model.named_modules() if isinstance(m, StoredLinear)}
    assert len(layers) == sum(key.endswith(".qweight") for key in stored)
    assert all(torch.equal(m.weight, wanted.get_submodule(n).weight) for n, m in layers.items())
    assert "quantization_config" not in loaded.model.config.get_text_config().to_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", "gptq"),
        ("llama", "gptq-act-order"),
        ("qwen2", "gptq-8-bits"),
        ("phi3", "awq"),
        ("granite", "pack-quantized"),
        ("gpt2", "gptq"),
    ],
)
def test_integers_are_exported_as_they_are(tmp_path, kind, name):
    model = checkpoint(tmp_path / "source", kind, name)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.gaps == [] and report.quant == "keep"
    assert sum(report.integers.values()) > 0
    emitted = report.replaced["npu_weight_quant_batchmatmul"]["emitted"]
    assert emitted == sum(report.integers.values())
    graph = onnx.load(tmp_path / "out" / "model.onnx").graph
    kept = {each.name: each for each in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "NPUWeightQuantBatchMatmulV2"]
    wanted = onnx.TensorProto.INT8 if name == "gptq-8-bits" else onnx.TensorProto.INT32
    assert {kept[node.input[1]].data_type for node in nodes} == {wanted}
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    for provider in PROVIDERS:
        # Only float16 rounds, as it does in transformers.
        assert rms(errors(model, tmp_path / "out", provider)) <= 2 * rms(halved_errors(model))


def test_projections_stored_differently_stay_several(tmp_path):
    rng = np.random.default_rng(0)
    weights = [
        IntegerWeight.packed(
            torch.tensor(rng.integers(-8, 8, (32, 8)), dtype=torch.int8),
            bits, torch.rand(32 // group, 8), None, group,
        )
        for bits, group in ((4, 16), (4, 32), (8, 16))
    ]  # fmt: skip
    assert joined(weights[:2]) is None and joined([weights[0], weights[2]]) is None
    both = joined([weights[0], weights[0]])
    assert torch.equal(both.floats(), weights[0].floats().repeat(2, 1))


@pytest.mark.parametrize("activation", ["dynamic", pytest.param("static", marks=pytest.mark.slow)])
def test_integer_activations_of_compressed_tensors(tmp_path, activation):
    rng = np.random.default_rng(3)
    model = tiny_model("llama")
    config = tensors_config("int-quantized", num_bits=8, strategy="channel", group_size=None)
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": activation == "dynamic"}
    config["config_groups"]["group_0"]["input_activations"] = inputs
    stored = {}
    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            size = layer.in_features
            w = Quantised(layer.out_features, size, 8, rng, group=size, symmetric=True)
            stored |= {f"{name}.{key}": value for key, value in as_int8_tensors(w).items()}
            if activation == "static":
                stored[f"{name}.input_scale"] = torch.tensor([0.05])
            with torch.no_grad():
                layer.weight.copy_(w.weight)
    save(tmp_path / "source", model, stored, config)
    options = {"quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.gaps == [] and report.integers == {f"int8, {activation} int8 activations": 8}
    rounding = "npu_dynamic_quant" if activation == "dynamic" else "npu_quantize"
    assert report.replaced[rounding]["emitted"] == 8

    def as_integers(module, given):
        x = given[0]
        if activation == "static":
            return ((x / 0.05).round().clamp(-128, 127) * 0.05,)
        step = x.abs().amax(-1, keepdim=True) / 127
        return ((x / step).round() * step,)

    for name, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layer.register_forward_pre_hook(as_integers)
    for provider in PROVIDERS:
        # The same integers; a value next to a half may round the other way, one step of 127.
        assert rms(errors(model, tmp_path / "out", provider)) <= 0.01


@pytest.mark.parametrize("first", ["Linear", "re:.*proj"])
def test_a_group_of_named_layers_comes_before_others(tmp_path, first):
    """As in recipes with more bits for some layers: down_proj matches two groups."""
    config, _, pack = FORMATS["pack-quantized"]
    rng, model, stored = np.random.default_rng(3), tiny_model("llama"), {}
    most = {"targets": [first], "weights": {"num_bits": 4, "group_size": GROUP}}
    some = {"targets": ["re:.*down"], "weights": {"num_bits": 8, "group_size": GROUP}}
    own = {"targets": ["model.layers.1.mlp.down_proj"], "weights": {"num_bits": 3}}
    config = {**config, "config_groups": {"a": most, "b": some, "c": own}}
    for name, layer in projections(model).items():
        bits = 3 if name in own["targets"] else 8 if "down" in name else 4
        w = Quantised(*layer.weight.shape, bits, rng)
        stored |= {f"{name}.{key}": value for key, value in pack(w).items()}
        with torch.no_grad():
            layer.weight.copy_(w.weight)
    save(tmp_path, model, stored, config)
    loaded = load_checkpoint(tmp_path).model
    for name, layer in projections(model).items():
        assert torch.equal(loaded.get_submodule(name).weight, layer.weight)


def test_copies_share_their_integers():
    """As copies of a model share its floats."""
    weight = IntegerWeight.packed(torch.ones(16, 8).char(), 4, torch.ones(1, 8), None, 16)
    layer = StoredLinear(weight, None)
    assert copy.deepcopy(layer).stored.integers is weight.integers


def test_words_must_hold_all_integers():
    with pytest.raises(
        ValueError, match=r"expected int32 words \[3, columns\] for 32 integers of 3"
    ):
        unpacked(torch.zeros(2, 4, dtype=torch.int32), 3, 32)


def test_encoders_compute_with_the_floats_of_integers(tmp_path):
    config, bits, pack = FORMATS["gptq"]
    rng, model, stored = np.random.default_rng(3), tiny_encoder("bert", num_hidden_layers=1), {}
    for name, layer in model.encoder.named_modules():
        if isinstance(layer, torch.nn.Linear):
            w = Quantised(*layer.weight.shape, bits, rng)
            stored |= {f"encoder.{name}.{key}": value for key, value in pack(w).items()}
            with torch.no_grad():
                layer.weight.copy_(w.weight)
    save(tmp_path / "source", model, stored, config)
    report = export_encoder(tmp_path / "source", tmp_path / "out", quant="w8a8_dynamic")
    assert report.replaced["npu_dynamic_quant"]["emitted"] > 0
    export_encoder(tmp_path / "source", tmp_path / "floats")
    session = session_of(tmp_path / "floats", PROVIDERS[0])
    sample = sample_for(session)
    with torch.no_grad():
        wanted = model(**sample).last_hidden_state
    seen = sample["attention_mask"].bool()
    actual = run(session, sample)[0]
    torch.testing.assert_close(torch.from_numpy(actual)[seen], wanted[seen], rtol=0, atol=1e-4)


def test_integers_need_a_dtype_of_16_bits(tmp_path):
    checkpoint(tmp_path / "source", "llama", "gptq")
    with pytest.raises(
        ArgumentError, match=r"expected dtype float16 or bfloat16 with quant='keep'"
    ):
        export_causal_lm(tmp_path / "source", tmp_path / "out", quant="keep")
    assert not (tmp_path / "out").exists()


def test_floats_have_no_integers_to_keep(tmp_path):
    with pytest.raises(
        ArgumentError, match=r"expected quant='keep' with a checkpoint whose linear"
    ):
        export_causal_lm(tiny_model("llama"), tmp_path, dtype="float16", quant="keep")


def test_without_keep_floats_are_exported_and_a_warning_says_so(tmp_path):
    checkpoint(tmp_path / "source", "llama", "gptq")
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", check=False)
    assert "npu_weight_quant_batchmatmul" not in report.replaced
    assert report.warnings[0].startswith("the gptq checkpoint's integers are exported as float32")

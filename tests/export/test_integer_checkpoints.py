"""Quantised checkpoints of other tools, exported with the integers that they hold.

The packers here follow the tools' own documents, bit by bit, and share no code with the readers.
"""

from __future__ import annotations

import copy
import json

import gguf
import numpy as np
import onnx
import pytest
import torch
import transformers
from onnxruntime_npu.converters.quantized_experts import is_experts
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm, export_encoder
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.integers.bits import unpacked
from onnxruntime_npu.exporter.integers.gguf_blocks import bits_of, blocks_of, has_blocks
from onnxruntime_npu.exporter.integers.integer_weight import IntegerWeight, joined
from onnxruntime_npu.exporter.integers.stored_linear import StoredLinear
from onnxruntime_npu.exporter.weights.lazy_weight import value_of
from safetensors.torch import load_file, save_file
from transformers.pytorch_utils import Conv1D

from .conftest import tiny_model
from .test_causal_lm import PROVIDERS
from .test_encoder import run, sample_for, session_of, tiny_encoder
from .test_image_text import tiny_model as image_text_model
from .test_quantized import errors, halved_errors, rms

GROUP = 16


def words_along_rows(values: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned values [rows, columns] in a stream of bits down each column, lowest bits first."""
    rows, columns = values.shape
    words = np.zeros((-(-rows * bits // 32), columns), np.uint64)
    for row in range(rows):
        for bit in range(bits):
            at = row * bits + bit
            words[at // 32] |= ((values[row].astype(np.uint64) >> bit) & 1) << (at % 32)
    return words.astype(np.uint32).view(np.int32)


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


class Quantised:
    """A weight [out, in] on a grid: integers q of `bits`, zero points and scales of its groups."""

    def __init__(self, out_features, in_features, bits, rng, *, group=GROUP, symmetric=False):
        groups = -(-in_features // group)
        self.bits, self.group = bits, group
        self.q = rng.integers(0, 2**bits, (out_features, in_features))
        middle = np.full((out_features, groups), 2 ** (bits - 1))
        self.zero = middle if symmetric else rng.integers(1, 2**bits, (out_features, groups))
        # Powers of two, which float16 has, of about the size that the weight had.
        self.scale = np.exp2(rng.integers(-2, 0, (out_features, groups)) - bits - 1.0)
        self.of_input = np.arange(in_features) // group

    @property
    def weight(self) -> torch.Tensor:
        spread = (self.q - self.zero[:, self.of_input]) * self.scale[:, self.of_input]
        return torch.tensor(spread, dtype=torch.float32)


def as_gptq(w: Quantised, *, version=1, act_order=False, rng=None):
    if act_order:
        w.of_input = rng.permutation(w.of_input)
    return {
        "qweight": tensor(words_along_rows(w.q.T, w.bits)),
        "qzeros": tensor(words_along_rows(w.zero - (version == 1), w.bits).T),
        "scales": tensor(w.scale.T).half(),
        "g_idx": torch.tensor(w.of_input, dtype=torch.int32),
    }


def as_awq(w: Quantised):
    def words(values):
        """[rows, columns] to [rows, columns / 8]: nibble n of a word is its output order[n]."""
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        eights = values.reshape(values.shape[0], -1, 8).astype(np.uint32)
        packed = sum(eights[..., order[n]] << np.uint32(4 * n) for n in range(8))
        return tensor(packed.astype(np.uint32).view(np.int32))

    return {
        "qweight": words(w.q.T),
        "qzeros": words(w.zero.T),
        "scales": tensor(w.scale.T).half(),
    }


def as_packed_tensors(w: Quantised):
    return {
        "weight_packed": tensor(words_along_rows(w.q.T, w.bits).T),
        "weight_scale": tensor(w.scale).half(),
        "weight_zero_point": tensor(words_along_rows(w.zero, w.bits)),
        "weight_shape": torch.tensor(w.q.shape),
    }


def as_int8_tensors(w: Quantised):
    return {
        "weight": tensor((w.q - 128).astype(np.int8)),
        "weight_scale": tensor(w.scale).float(),
    }


GPTQ = {"quant_method": "gptq", "group_size": GROUP, "sym": False}


def tensors_config(format_name, **weights):
    group = {"targets": ["Linear"], "weights": {"type": "int", "group_size": GROUP, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


FORMATS = {
    "gptq": ({**GPTQ, "bits": 4}, 4, as_gptq),
    "gptq-act-order": (
        {**GPTQ, "bits": 4, "desc_act": True},
        4,
        lambda w: as_gptq(w, act_order=True, rng=np.random.default_rng(5)),
    ),
    "gptq-8-bits": ({**GPTQ, "bits": 8}, 8, as_gptq),
    "gptq-3-bits": ({**GPTQ, "bits": 3}, 3, as_gptq),
    "gptq-v2": (
        {**GPTQ, "bits": 4, "checkpoint_format": "gptq_v2"},
        4,
        lambda w: as_gptq(w, version=2),
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, 4, as_awq),
    "pack-quantized": (tensors_config("pack-quantized", num_bits=4), 4, as_packed_tensors),
}


def checkpoint(path, kind, name, **quantised):
    """Save a tiny model in a format; return it in floats."""
    config, bits, pack = FORMATS[name]
    rng = np.random.default_rng(3)
    model = tiny_model(kind)
    stored = {}
    for layer_name, layer in projections(model).items():
        weight = as_stored(layer)
        w = Quantised(*weight.shape, bits, rng, **quantised)
        stored |= {f"{layer_name}.{key}": value for key, value in pack(w).items()}
        with torch.no_grad():
            weight.copy_(w.weight)
    return save(path, model, stored, config)


def projections(model):
    """Return the layers that tools quantise, by name."""
    kinds = (torch.nn.Linear, Conv1D)
    layers = {name: each for name, each in model.named_modules() if isinstance(each, kinds)}
    layers.pop("lm_head")
    return layers


def as_stored(layer):
    """Return a view [out, in] of a layer's weight, as tools store it."""
    return layer.weight.t() if isinstance(layer, Conv1D) else layer.weight


def save(path, model, stored, config):
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for key in stored:
        tensors.pop(f"{key.rpartition('.')[0]}.weight", None)
    save_file(tensors | stored, path / "model.safetensors", {"format": "pt"})
    settings = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**settings, "quantization_config": config}))
    return model


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


def experts_checkpoint(path, kind, name, changed=lambda pack: pack, **quantised):
    """Save a tiny model of experts, whose layers files have one by one; return it in floats."""
    config, bits, pack = FORMATS[name]
    rng = np.random.default_rng(3)
    tiny_model(kind).save_pretrained(path / "floats")
    floats = load_file(path / "floats" / "model.safetensors")
    stored, packed = {}, changed(pack)
    for key in [key for key in floats if ".experts." in key]:
        layer = key.removesuffix(".weight")
        w = Quantised(*floats[key].shape, bits, rng, **quantised)
        stored |= {f"{layer}.{name}": value for name, value in packed(w).items()}
        floats[key] = w.weight
    assert stored
    save_file(floats, path / "floats" / "model.safetensors", {"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(path / "floats", dtype="float32")
    save(path / "source", model, stored, config)
    return model.eval()


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


def as_float8(weight, rows, columns):
    """Return the tensors of a weight [out, in] with a scale for each block, and its floats."""
    out, size = weight.shape
    row, column = np.arange(out) // rows, np.arange(size) // columns
    scale = torch.rand(int(row[-1]) + 1, int(column[-1]) + 1) / 1000
    stored = (weight.detach() * 40).to(torch.float8_e4m3fn)
    floats = stored.float() * scale[row][:, column]
    return {"weight": stored, "weight_scale": scale}, floats


@pytest.mark.parametrize(
    ("described", "rows", "columns"),
    [
        ({"strategy": "tensor"}, 1000, 1000),
        ({"strategy": "channel"}, 1, 1000),
        ({"strategy": "block", "block_structure": [32, 48]}, 32, 48),
    ],
)
def test_floats_of_8_bits_are_restored_by_their_scales(tmp_path, described, rows, columns):
    """Also in bias, for qwen2 has some; the activations are not rounded."""
    model, stored = tiny_model("qwen2"), {}
    weights = {"num_bits": 8, "type": "float", **described}
    inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    config = {**tensors_config("float-quantized"), "config_groups": {"group_0": group}}
    for name, layer in projections(model).items():
        tensors, floats = as_float8(layer.weight, rows, columns)
        stored |= {f"{name}.{key}": value for key, value in tensors.items()}
        with torch.no_grad():
            layer.weight.copy_(floats)
    save(tmp_path, model, stored, config)
    loaded = load_checkpoint(tmp_path)
    wanted, actual = model.state_dict(), loaded.model.state_dict()
    assert wanted.keys() == actual.keys()
    assert all(torch.equal(value_of(actual[name]), wanted[name]) for name in wanted)
    assert loaded.left.keys() == projections(model).keys()


def test_experts_of_floats_of_8_bits_are_restored(tmp_path):
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    config = tensors_config("float-quantized")
    config["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": weights}}

    tiny_model("qwen3_moe").save_pretrained(tmp_path / "floats")
    floats, stored = load_file(tmp_path / "floats" / "model.safetensors"), {}
    for key in [key for key in floats if ".experts." in key]:
        tensors, floats[key] = as_float8(floats[key], 1, 1000)
        stored |= {f"{key.removesuffix('.weight')}.{n}": value for n, value in tensors.items()}
    save_file(floats, tmp_path / "floats" / "model.safetensors", {"format": "pt"})
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "floats", dtype="float32")
    save(tmp_path / "source", model, stored, config)
    loaded = load_checkpoint(tmp_path / "source")
    wanted, actual = model.state_dict(), loaded.model.state_dict()
    assert wanted.keys() == actual.keys()
    assert all(torch.equal(value_of(actual[name]), wanted[name]) for name in wanted)
    assert set(loaded.left.values()) == {("experts", "the file has floats of 8 bits or fewer")}


def test_floats_of_8_bits_without_a_format_are_refused(tmp_path):
    """Their scale would be left out."""
    checkpoint(tmp_path, "llama", "gptq")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, file, {"format": "pt"})
    message = r"lm_head: expected a weight in floats of 16 bits or more, got F8_E4M3"
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_gguf_are_restored_by_scale_and_offset(kind):
    kind = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, (6, 3 * size), dtype=np.uint8)
    for start in range(0, 3 * size, size):  # halves of random bits may be NaN
        scales = {"Q6_K": [208]}.get(
            kind.name, [0, 2] if "_1" in kind.name or "_K" in kind.name else [0]
        )
        for at in scales:
            half = rng.uniform(0.01, 0.1, (6, 1)).astype(np.float16)
            data[:, start + at : start + at + 2] = half.view(np.uint8)
    blocks = blocks_of(kind, data)
    expected = gguf.dequantize(data, kind)
    actual = blocks.q * blocks.d[..., None]
    if blocks.m is not None:
        actual = actual + blocks.m[..., None]
    assert np.abs(blocks.q).max() <= 2 ** (bits_of(kind) - 1)
    assert expected.shape == (6, 3 * values)
    # Another order of operations in float32.
    np.testing.assert_allclose(
        actual.reshape(6, -1), expected, rtol=0, atol=1e-5 * np.abs(expected).max()
    )


def test_unknown_blocks_of_gguf_have_no_integers():
    assert not has_blocks(gguf.GGMLQuantizationType.IQ4_NL)


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


def corrupt(path, change):
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file({k: v.contiguous() for k, v in tensors.items()}, file, {"format": "pt"})


LAYER = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{LAYER}.scales"), rf"{LAYER}: expected a tensor scales, got g_idx, qw"),
        (
            lambda t: t.update({f"{LAYER}.scales": torch.ones(4, 63)}),
            rf"{LAYER}: expected scales of shape \[4, 64\], got \[4, 63\]",
        ),
        (
            lambda t: t[f"{LAYER}.scales"][1].fill_(float("nan")),
            rf"{LAYER}: expected finite scales, got some that are not",
        ),
        (
            lambda t: t.update({f"{LAYER}.qweight": t[f"{LAYER}.qweight"][:7]}),
            rf"{LAYER}: expected qweight with 2 to 8 bits for 64 integers, got 7 words",
        ),
        (
            lambda t: t.update({f"{LAYER}.qzeros": t[f"{LAYER}.qzeros"][:3]}),
            rf"{LAYER}: expected qzeros of shape \[4, 64\], got \[3, 64\]",
        ),
        (
            lambda t: t.update({f"{LAYER}.scales": torch.ones(5, 64)}),
            rf"{LAYER}: expected groups of 16 for 64 input features, got 5",
        ),
        (
            lambda t: t.update({f"{LAYER}.g_idx": torch.full((64,), 99, dtype=torch.int32)}),
            rf"{LAYER}: expected g_idx with 16 rows in each of 4 groups",
        ),
        (
            lambda t: t.update({"model.layers.0.mlp.experts.0.up.qweight": torch.zeros(1)}),
            r"expected quantised linear layers and experts, got .*experts.0.up, which is not",
        ),
    ],
    ids=["missing", "columns", "nan", "words", "zeros", "groups", "order", "experts"],
)
def test_damaged_checkpoints_are_refused(tmp_path, change, message):
    checkpoint(tmp_path / "source", "llama", "gptq")
    corrupt(tmp_path / "source", change)
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path / "source")


ROTATED = {"targets": ["re:.*down_proj$"], "location": "input"}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gptq", {"checkpoint_format": "marlin"}, r"expected checkpoint_format gptq or gptq_v2"),
        ("gptq", {"is_marlin_format": True}, r"gptq or gptq_v2, got 'marlin'"),
        ("pack-quantized", {"format": "marlin-24"}, r"without zeros left out, .*got 'marlin-24'"),
        (
            "pack-quantized",
            {"sparsity_config": {"format": "sparse-24-bitmask"}},
            r"without zeros left out, such as pack-quantized, got 'sparse-24-bitmask'",
        ),
        (
            "awq",
            {"version": "gemv_fast"},
            r"expected the AWQ version gemm or gemv, got 'gemv_fast': quantise the model",
        ),
        ("pack-quantized", {"config_groups": {}}, r"expected a group in config_groups"),
        (
            "pack-quantized",
            {"transform_config": {"config_groups": {"R4": {"apply": [ROTATED]}}}},
            r"expected transforms of the weights .*, got transform_config with input",
        ),
    ],
)
def test_layouts_that_are_not_read_are_refused(tmp_path, name, change, message):
    checkpoint(tmp_path, "llama", name)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)

"""GPTQ checkpoints as its tools write them: biases of all layers, file names, zero points of 0."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from safetensors.torch import load_file, save_file

from .conftest import tiny_model
from .stored_integers import (
    GPTQ,
    Quantised,
    as_gptq,
    checkpoint,
    corrupt,
    experts_checkpoint,
    projections,
    save,
    tensor,
    words_along_rows,
)
from .test_causal_lm import PROVIDERS
from .test_quantized import errors, halved_errors, rms


def add_biases(path, model, value):
    """Give all layers of a file a bias, as GPTQ's tools do, and the model, too."""
    tensors = load_file(path / "model.safetensors")
    for name, layer in projections(model).items():
        bias = value(layer.out_features).half()
        tensors[f"{name}.bias"] = bias
        layer.bias = torch.nn.Parameter(bias.float(), requires_grad=False)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})


def test_biases_of_zeros_are_left_out(tmp_path):
    model = checkpoint(tmp_path, "llama", "gptq")
    add_biases(tmp_path, model, torch.zeros)
    loaded = load_checkpoint(tmp_path).model
    assert all(loaded.get_submodule(name).bias is None for name in projections(model))


def test_biases_that_the_architecture_has_not_are_added(tmp_path):
    model = checkpoint(tmp_path / "source", "llama", "gptq")
    add_biases(tmp_path / "source", model, torch.randn)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.gaps == [] and sum(report.integers.values()) == 8
    for provider in PROVIDERS:
        # Only float16 rounds, as it does in transformers.
        assert rms(errors(model, tmp_path / "out", provider)) <= 2 * rms(halved_errors(model))


def test_biases_of_another_shape_are_refused(tmp_path):
    model = checkpoint(tmp_path, "llama", "gptq")
    name = next(iter(projections(model)))
    corrupt(tmp_path, lambda tensors: tensors.update({f"{name}.bias": torch.ones(3)}))
    with pytest.raises(ExportError, match=rf"wrong shape for 1 weights, such as {name}.bias"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("value", [0, 1])
def test_biases_of_experts_may_be_zeros(tmp_path, value):
    name = "model.layers.0.mlp.experts.1.down_proj"
    experts_checkpoint(tmp_path, "qwen3_moe", "gptq")
    bias = torch.full((64,), value).half()
    corrupt(tmp_path / "source", lambda tensors: tensors.update({f"{name}.bias": bias}))
    if value == 0:
        assert load_checkpoint(tmp_path / "source").left == {}
        return
    with pytest.raises(ExportError, match=rf"{name}: expected experts without bias, got one that"):
        load_checkpoint(tmp_path / "source")


def assert_same_weights(loaded, model):
    for name, layer in projections(model).items():
        assert torch.equal(loaded.model.get_submodule(name).weight, layer.weight)


@pytest.mark.parametrize("parts", [1, 2])
def test_files_may_have_names_of_their_own(tmp_path, parts):
    """As AutoGPTQ names them by default; with an index if there are several."""
    model = checkpoint(tmp_path, "llama", "gptq")
    file, name = tmp_path / "model.safetensors", "gptq_model-4bit-16g.safetensors"
    if parts == 1:
        file.rename(tmp_path / name)
    else:
        tensors, places = load_file(file), {}
        for part in range(parts):
            its = {key: tensors[key] for key in sorted(tensors)[part::parts]}
            place = f"{name.removesuffix('.safetensors')}-0000{part + 1}-of-00002.safetensors"
            save_file(its, tmp_path / place, {"format": "pt"})
            places |= dict.fromkeys(its, place)
        file.unlink()
        (tmp_path / f"{name}.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": places})
        )
    assert_same_weights(load_checkpoint(tmp_path), model)


def test_several_files_without_an_index_are_refused(tmp_path):
    checkpoint(tmp_path, "llama", "gptq")
    (tmp_path / "model.safetensors").rename(tmp_path / "b.safetensors")
    save_file({"w": torch.zeros(1)}, tmp_path / "a.safetensors")
    message = r"expected model.safetensors, .* got a.safetensors, b.safetensors: name the file of"
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)


def test_version_of_the_layout_may_be_called_format(tmp_path):
    """As transformers and GPTQModel call it now."""
    model = checkpoint(tmp_path, "llama", "gptq-v2")
    config = json.loads((tmp_path / "config.json").read_text())
    described = config["quantization_config"]
    described["format"] = described.pop("checkpoint_format")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_same_weights(load_checkpoint(tmp_path), model)


def test_few_inputs_have_the_bits_of_the_description(tmp_path):
    """Four integers are one word of any bits, as those of Mamba's dt_proj."""
    model = checkpoint(tmp_path, "mamba", "gptq")
    assert_same_weights(load_checkpoint(tmp_path), model)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_zero_points_of_0_borrow_from_others(tmp_path, bits):
    """GPTQModel stores version 1 as words of version 2 less one for each zero point."""
    rng, model, stored = np.random.default_rng(3), tiny_model("llama"), {}
    ones = sum(1 << at for at in range(0, 32, bits))
    for name, layer in projections(model).items():
        w = Quantised(*layer.weight.shape, bits, rng)
        w.zero = rng.integers(0, 2**bits, w.zero.shape)
        words = words_along_rows(w.zero, bits).T.view(np.uint32).astype(np.int64) - ones
        tensors = {
            **as_gptq(w, version=2),
            "qzeros": tensor(words.astype(np.uint32).view(np.int32)),
        }
        stored |= {f"{name}.{key}": value for key, value in tensors.items()}
        with torch.no_grad():
            layer.weight.copy_(w.weight)
    save(tmp_path, model, stored, {**GPTQ, "bits": bits})
    assert_same_weights(load_checkpoint(tmp_path), model)

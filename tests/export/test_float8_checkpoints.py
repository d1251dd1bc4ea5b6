"""Checkpoints of floats of 8 bits, whose weights their scales restore."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.weights.lazy_weight import value_of
from safetensors.torch import load_file, save_file

from .conftest import tiny_model
from .stored_integers import checkpoint, projections, save, tensors_config


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

"""Quantised checkpoints whose floats transformers restores, as DeepSeek-V3's and gpt-oss's are.

The packers follow the formats' documents, and share no code with transformers' readers.
"""

from __future__ import annotations

import json

import pytest
import torch
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from safetensors.torch import load_file, save_file

from .conftest import tiny_model

BLOCK = 32  # of rows and columns of fp8 that share a scale; of columns of mxfp4
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
METHODS = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["*.self_attn", "lm_head"]},
}


def as_fp8(name, weight):
    """Return the tensors that a file has for a weight [out, in], and the floats they stand for."""
    rows, columns = (size // BLOCK for size in weight.shape)
    tiles = weight.view(rows, BLOCK, columns, BLOCK)
    scales = tiles.abs().amax((1, 3)) / 448
    rounded = (tiles / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    floats = rounded.float() * scales[:, None, :, None]
    stored = {name: rounded.view(weight.shape), f"{name}_scale_inv": scales}
    return stored, floats.view(weight.shape)


def as_mxfp4(name, weight):
    """Do the same for experts [E, in, out]: random floats of 4 bits with a power of two for 32."""
    experts, inputs, outputs = weight.shape
    groups = (experts, outputs, inputs // BLOCK)
    blocks = torch.randint(0, 256, (*groups, BLOCK // 2), dtype=torch.uint8)
    scales = torch.randint(122, 126, groups, dtype=torch.uint8)
    halves = [FP4[(blocks & 15).long()], FP4[(blocks >> 4).long()]]
    floats = torch.stack(halves, -1).flatten(-2) * torch.exp2(scales.float() - 127)[..., None]
    stored = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return stored, floats.flatten(-2).transpose(1, 2)


def save(path, method):
    """Save a model; return the floats of its quantised weights by name."""
    kind, pack = ("llama", as_fp8) if method == "fp8" else ("gpt_oss", as_mxfp4)
    tiny_model(kind, intermediate_size=128).save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    quantised = (
        ("_proj.weight",) if method == "fp8" else ("experts.gate_up_proj", "experts.down_proj")
    )
    floats = {}
    for name in [name for name in tensors if name.endswith(quantised)]:
        stored, floats[name] = pack(name, tensors.pop(name))
        tensors |= stored
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = METHODS[method]
    (path / "config.json").write_text(json.dumps(config))
    return floats


@pytest.mark.parametrize("method", METHODS)
def test_floats_are_those_of_the_file(tmp_path, method):
    floats = save(tmp_path, method)
    checkpoint = load_checkpoint(tmp_path)
    loaded = checkpoint.model.state_dict()
    assert floats
    for name, expected in floats.items():
        # Products of a float of at most 4 bits with a scale in float32 are rounded at most once.
        torch.testing.assert_close(loaded[name].value(), expected, rtol=2**-23, atol=0)
    assert checkpoint.quantization == method and checkpoint.warnings == []
    assert not hasattr(checkpoint.model.config, "quantization_config")


def test_export_is_in_floats(tmp_path):
    save(tmp_path / "in", "fp8")
    with pytest.raises(ArgumentError, match="expected quant='keep' with a checkpoint whose linear"):
        export_causal_lm(tmp_path / "in", tmp_path / "out", dtype="float16", quant="keep")
    report = export_causal_lm(tmp_path / "in", tmp_path / "out", check=False)
    assert report.gaps == [] and report.kept == []
    assert "quantization_config" not in (tmp_path / "out" / "config.json").read_text()


@pytest.mark.parametrize("method", ["modelopt", "aqlm"])  # one that transformers does not know
def test_other_methods_are_refused_by_name(tmp_path, method):
    tiny_model("llama").save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if "_proj" in name]:
        tensors[name] = torch.zeros(tensors[name].shape[0], 8, dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method}
    (tmp_path / "config.json").write_text(json.dumps(config))
    message = (
        rf"\(config.json has quant_method '{method}': expected a checkpoint in floats, or of a"
    )
    with pytest.raises(ExportError, match=message) as caught:
        load_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)

"""Reading checkpoints: a malformed file gives a one-line error that names it."""

from __future__ import annotations

import json
import shutil

import gguf
import numpy as np
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter.checkpoint import load_checkpoint

from .conftest import tiny_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint") / "llama"
    tiny_model("llama").to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture
def copied(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "model")


def write_gguf(path, architecture="llama", tensors=True):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    if tensors:
        writer.add_tensor("token_embd.weight", np.zeros((97, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_safetensors_directory_is_read_in_float32(saved):
    checkpoint = load_checkpoint(saved)
    assert {p.dtype for p in checkpoint.model.parameters()} == {torch.float32}
    expected = tiny_model("llama").to(torch.bfloat16).float().state_dict()
    actual = checkpoint.model.state_dict()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    assert checkpoint.tokenizer is None


def test_missing_directory_is_an_error(tmp_path):
    with pytest.raises(ArgumentError, match=r"no such model directory: .*nowhere"):
        load_checkpoint(tmp_path / "nowhere")


def test_directory_without_model_is_an_error(tmp_path):
    with pytest.raises(ArgumentError, match=r"holds neither config.json nor a .gguf file"):
        load_checkpoint(tmp_path)


def test_several_gguf_files_are_an_error(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        write_gguf(tmp_path / name)
    with pytest.raises(ArgumentError, match=r"several GGUF files \(a.gguf, b.gguf\): name one"):
        load_checkpoint(tmp_path)


def test_unsupported_files_are_an_error(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ArgumentError, match=r"expected a model directory or a .gguf file"):
        load_checkpoint(tmp_path / "model.bin")


def test_directory_without_safetensors_is_an_error(copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(ExportError, match=r"holds no \*.safetensors file"):
        load_checkpoint(copied)


def test_truncated_safetensors_is_an_error(copied):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ExportError, match=r"cannot load .*model") as caught:
        load_checkpoint(copied)
    assert "\n" not in str(caught.value)


def test_missing_weights_are_not_initialised(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ExportError, match=r"lacks 9 weights, such as model.layers.2"):
        load_checkpoint(copied)


def test_weights_of_another_size_are_an_error(copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    with pytest.raises(
        ExportError, match=r"has the wrong shape for \d+ weights, such as model.layers.0.mlp"
    ):
        load_checkpoint(copied)


@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "unheard-of"}'])
def test_invalid_config_is_an_error(copied, text):
    (copied / "config.json").write_text(text)
    with pytest.raises(ExportError, match=r"cannot load .*model"):
        load_checkpoint(copied)


def test_invalid_gguf_is_an_error(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(ExportError, match=r"model.gguf is not a GGUF file: it starts with b'PK"):
        load_checkpoint(path)


@pytest.mark.parametrize("kept", [4, 16, 100, 2000])
def test_truncated_gguf_is_an_error(tmp_path, kept):
    path = write_gguf(tmp_path / "model.gguf")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ExportError, match=r"model.gguf is (damaged or )?cut short") as caught:
        load_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_gguf_without_tensors_is_an_error(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", tensors=False)
    with pytest.raises(ExportError, match=r"model.gguf holds no tensors"):
        load_checkpoint(path)


def test_gguf_of_unknown_architecture_is_an_error(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", architecture="unheard-of")
    with pytest.raises(ExportError, match=r"cannot load .*model.gguf: .*unheard-of"):
        load_checkpoint(path)

"""Reading checkpoints: a malformed file gives a one-line error that names it."""

from __future__ import annotations

import json
import shutil

import gguf
import numpy as np
import pytest
import torch
from onnxruntime_npu import cli
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.parts import save_companions
from safetensors.torch import load_file, save_file

from .conftest import letter_tokenizer, tiny_model


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
    with pytest.raises(ExportError, match=r"model.safetensors is cut short: .* ends at") as caught:
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
    with pytest.raises(ExportError, match=r"cannot load .*model") as caught:
        load_checkpoint(copied)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", '{"eos_token_id": 2'])
def test_damaged_settings_of_generation_are_an_error(copied, text):
    """A model without its end tokens would not stop."""
    (copied / "generation_config.json").write_text(text)
    with pytest.raises(ExportError, match=r"generation_config.json is damaged: expected an obj"):
        load_checkpoint(copied)


@pytest.mark.parametrize(
    ("model_type", "auto_map"),
    [
        ("unheard-of", {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}),
        ("vit", {"AutoModelForCausalLM": "own.Model"}),  # of which transformers has no such model
    ],
)
def test_code_of_a_model_is_not_run(copied, monkeypatch, model_type, auto_map):
    """transformers asks on the terminal whether to run it, unless it is told."""
    monkeypatch.setattr("builtins.input", lambda _question: "y")
    (copied / "own.py").write_text("raise SystemExit('the code of the model has run')")
    change_config(copied, model_type=model_type, auto_map=auto_map)
    with pytest.raises(ExportError, match=r"cannot load .*model: it has code of its own, which is"):
        load_checkpoint(copied)


def test_code_of_a_tokenizer_is_not_run(copied, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda _question: "y")
    (copied / "own.py").write_text("raise SystemExit('the code of the tokenizer has run')")
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (copied / "tokenizer_config.json").write_text(json.dumps(own))
    checkpoint = load_checkpoint(copied)
    assert checkpoint.tokenizer is None
    assert "custom code" in checkpoint.without_tokenizer


def test_missing_tokenizer_is_told_from_a_damaged_one(copied):
    assert load_checkpoint(copied).without_tokenizer == "no tokenizer is written: none was found"
    letter_tokenizer().save_pretrained(copied)
    (copied / "tokenizer.json").write_text("{")
    damaged = load_checkpoint(copied).without_tokenizer
    assert damaged.startswith("no tokenizer is written: ") and "none was" not in damaged


@pytest.mark.parametrize("settings", [False, True])
def test_tokenizer_without_vocabulary_is_none(tmp_path, settings):
    """transformers makes one for some architectures that finds no token in any text."""
    model = tiny_model("qwen2", max_window_layers=2)
    model.save_pretrained(tmp_path)
    if settings:
        own = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>"}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.tokenizer is None
    found = "its vocabulary has special tokens only" if settings else "none was found"
    assert checkpoint.without_tokenizer == f"no tokenizer is written: {found}"


def test_layers_that_have_a_window_are_none_to_build(tmp_path):
    """A Qwen with fewer weights than that, such as those that tests are made with."""
    model = tiny_model("qwen2", max_window_layers=28)
    assert len(model.state_dict()) < 28
    model.save_pretrained(tmp_path)
    assert load_checkpoint(tmp_path).model.config.max_window_layers == 28


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


def header_of(path):
    """Return the header of a safetensors file and the bytes after it."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_header(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


NAME = "model.layers.0.mlp.up_proj.weight"


def longer(entry):
    entry["data_offsets"][1] += 10**9


def larger(entry):
    entry["shape"] = [2**40, 2**40]


def negative(entry):
    entry["shape"] = [-112, -64]


def of_float4(entry):
    entry["dtype"] = "F4"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (longer, r"model.safetensors is cut short: model.layers.0.mlp.up_proj.weight ends at"),
        (larger, r"model.safetensors is damaged: expected 24178\d+ bytes of model.layers.0.mlp"),
        (negative, r"model.safetensors is damaged: its header is none of safetensors"),
        (of_float4, r"up_proj.weight has dtype F4, which torch does not have"),
    ],
)
def test_header_that_disagrees_with_the_file_is_an_error(copied, change, message):
    path = copied / "model.safetensors"
    header, data = header_of(path)
    change(header[NAME])
    write_header(path, header, data)
    with pytest.raises(ExportError, match=message):
        load_checkpoint(copied)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x07", (2**63).to_bytes(8, "little") + b"{}", (200_000_000).to_bytes(8, "little")],
)
def test_file_without_a_whole_header_is_an_error(copied, content):
    (copied / "model.safetensors").write_bytes(content)
    with pytest.raises(ExportError, match=r"model.safetensors is damaged or cut short: expected a"):
        load_checkpoint(copied)


@pytest.mark.parametrize("header", [b"[1]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}'])
def test_header_of_something_else_is_an_error(copied, header):
    write_header(copied / "model.safetensors", header, b"")
    with pytest.raises(ExportError, match=r"damaged: its header is none of safetensors"):
        load_checkpoint(copied)


def with_index(folder, weight_map):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (
            "../model-1.safetensors",
            r"index.json names '../model-1.safetensors': expected a file in",
        ),
        ("/etc/passwd", r"index.json names '/etc/passwd': expected a file in the same directory"),
        ("model-2.safetensors", r"lacks model-2.safetensors, which model.safetensors.index.json"),
        ({}, r"names {}: expected a file in the same directory"),
    ],
)
def test_index_that_names_other_files_is_an_error(copied, place, message):
    with_index(copied, {"model.norm.weight": "model-1.safetensors", NAME: place})
    with pytest.raises(ExportError, match=message):
        load_checkpoint(copied)


def test_index_that_places_a_tensor_wrongly_is_an_error(copied):
    with_index(copied, {"model.unheard.weight": "model-1.safetensors"})
    with pytest.raises(ExportError, match=r"model-1.safetensors lacks model.unheard.weight, which"):
        load_checkpoint(copied)


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"metadata": {}}'])
def test_damaged_index_is_an_error(copied, text):
    with_index(copied, {})
    (copied / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ExportError, match=r"index.json is damaged: expected a 'weight_map'"):
        load_checkpoint(copied)


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_hidden_layers": 10**9},
            r"num_hidden_layers 1000000000, but its files hold 2\d weig",
        ),
        ({"num_hidden_layers": -1}, r"num_hidden_layers -1, but its files hold 2\d weights"),
        ({"num_hidden_layers": 1}, r"has 9 weights of layers that config.json does not have, such"),
        ({"hidden_size": 2**62}, r"cannot load"),
        ({"hidden_size": 32}, r"has the wrong shape for \d+ weights"),
        ({"vocab_size": 10**9}, r"has the wrong shape for 2 weights"),
        ({"num_attention_heads": 8, "head_dim": 16}, r"has the wrong shape for 4 weights"),
        ({"num_key_value_heads": 4}, r"has the wrong shape for 4 weights"),
        ({"num_attention_heads": 3}, r"cannot load|wrong shape"),
        ({"vocab_size": -1}, r"cannot load"),
        ({"num_hidden_layers": "two"}, r"field 'num_hidden_layers': TypeError: .* expected int"),
        ({"num_attention_heads": 0}, r"config.json has num_attention_heads 0, expected 1 to 214"),
        ({"num_key_value_heads": -2}, r"config.json has num_key_value_heads -2, expected 1 to 214"),
        ({"num_key_value_heads": "two"}, r"config.json has num_key_value_heads 'two', expected 1"),
        ({"max_position_embeddings": -1}, r"has max_position_embeddings -1, expected 1 to 214"),
        ({"max_position_embeddings": 0}, r"has max_position_embeddings 0, expected 1 to 214"),
        ({"max_position_embeddings": 2**62}, r"has max_position_embeddings 461\d+, expected 1 to"),
        ({"head_dim": 0}, r"config.json has head_dim 0, expected 1 to 214"),
        ({"intermediate_size": -1}, r"config.json has intermediate_size -1, expected 1 to 214"),
        (
            {"intermediate_size": 2**70},
            r"config.json has intermediate_size 118\d+, expected 1 to 2",
        ),
        ({"quantization_config": [{}]}, r"has a quantization_config of type list, expected an obj"),
        ({"quantization_config": "gptq"}, r"has a quantization_config of type str, expected an ob"),
        ({"hidden_act": "unheard"}, r"transformers does not know hidden_act 'unheard', which its"),
        (
            {"rope_parameters": {"rope_type": "unheard", "rope_theta": 1e4}},
            r"transformers does not know rope_type 'unheard', which its config.json has",
        ),
    ],
)
def test_config_with_other_values_is_an_error(copied, changes, message):
    change_config(copied, **changes)
    with pytest.raises(ExportError, match=message) as caught:
        load_checkpoint(copied)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("bloom", {"n_head": 0}, r"config.json has n_head 0, expected 1 to 214"),
        ("mistral", {"sliding_window": 0}, r"has sliding_window 0, expected 1 or more, or null$"),
        ("mistral", {"sliding_window": -4}, r"has sliding_window -4, expected 1 or more"),
    ],
)
def test_sizes_that_some_models_have_are_checked(tmp_path, kind, changes, message):
    tiny_model(kind).save_pretrained(tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)


def test_a_setting_that_a_model_does_not_read_is_not_checked(copied):
    change_config(copied, sliding_window=0)
    assert load_checkpoint(copied).model.config.sliding_window == 0


def test_a_model_without_layers_is_an_error(copied, tmp_path):
    change_config(copied, num_hidden_layers=0)
    with pytest.raises(ExportError, match="expected layers that cache keys and values, got none"):
        export_causal_lm(copied, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_floats_of_an_unknown_quantisation_are_taken_with_a_warning(copied, tmp_path):
    """As transformers does."""
    change_config(copied, quantization_config={"quant_method": "unheard"})
    report = export_causal_lm(copied, tmp_path / "out", check=False)
    warnings = [warning for warning in report.warnings if "unheard" in warning]
    assert len(warnings) == 1 and "\n" not in warnings[0]
    assert "the weights are taken for floats without it" in warnings[0]
    assert "unheard" not in (tmp_path / "out" / "config.json").read_text()


@pytest.mark.parametrize("method", ["gptq", "fp8"])
def test_floats_of_a_known_quantisation_are_taken_with_a_warning(copied, method):
    change_config(copied, quantization_config={"quant_method": method})
    (warning,) = load_checkpoint(copied).warnings
    assert f"{method!r}, but all weights of the files are floats" in warning


def test_files_of_several_models_bring_the_warnings_of_their_checkpoint(copied, tmp_path):
    change_config(copied, quantization_config={"quant_method": "unheard"})
    checkpoint = load_checkpoint(copied)
    (known,) = checkpoint.warnings
    assert save_companions(tmp_path, checkpoint, None) == [known, checkpoint.without_tokenizer]


def change_weight(folder, dtype, name=NAME):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {name: (10 * tensors[name]).to(dtype)}, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("method", "dtype", "stored"),
    [
        (None, torch.int8, "int8"),
        (None, torch.float8_e4m3fn, "float8_e4m3fn"),
        ("unheard", torch.int8, "int8"),
        ("unheard", torch.float8_e5m2, "float8_e5m2"),
        ("fp8", torch.float8_e4m3fn, "float8_e4m3fn"),  # without its scales
    ],
)
def test_weights_that_nothing_restores_are_an_error(copied, method, dtype, stored):
    if method is not None:
        change_config(copied, quantization_config={"quant_method": method})
    change_weight(copied, dtype)
    with pytest.raises(ExportError, match=rf"expected {NAME} in floats, got {stored}") as caught:
        load_checkpoint(copied)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_numbers_are_an_error(copied, value):
    path = copied / "model.safetensors"
    tensors = load_file(path)
    tensors[NAME][3, 5] = value
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ExportError, match=rf"model: {NAME} has 1 values that are not finite"):
        load_checkpoint(copied)


def test_file_that_cannot_be_read_is_an_error(copied):
    (copied / "model.safetensors").unlink()
    (copied / "model.safetensors").mkdir()
    with pytest.raises(ExportError, match=r"holds no \*.safetensors file"):
        load_checkpoint(copied)


@pytest.mark.parametrize(
    ("kind", "command", "other"),
    [
        ("llava", "export", "export-image-text-to-text (export_image_text_to_text in Python)"),
        ("t5", "export", "export-seq2seq (export_seq2seq in Python)"),
        ("whisper", "export-image-text-to-text", "export-seq2seq (export_seq2seq in Python)"),
        ("llama", "export-image-text-to-text", "export (export_causal_lm in Python)"),
        ("llama", "export-seq2seq", "export (export_causal_lm in Python)"),
        ("clip", "export", "export-encoder (export_encoder in Python)"),
    ],
)
def test_models_of_another_command_are_refused_by_its_name(tmp_path, capsys, kind, command, other):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    save_file({"w": torch.zeros(1)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert cli.main([command, str(tmp_path), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert f"{kind} models are exported by {other}" in error and error.count("\n") == 1

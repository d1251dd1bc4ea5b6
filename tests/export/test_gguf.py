"""GGUF files are read as transformers reads them, one weight at a time."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import gguf
import numpy as np
import onnx
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.integers import gguf_weights
from onnxruntime_npu.exporter.integers.integer_weight import joined
from onnxruntime_npu.exporter.integers.stored_linear import StoredLinear
from onnxruntime_npu.exporter.weights.gguf_file import floats_of
from onnxruntime_npu.exporter.weights.lazy_weight import LazyWeight
from transformers import AutoModelForCausalLM

from .test_causal_lm import PROVIDERS
from .test_quantized import errors, halved_errors, rms

HIDDEN, MIDDLE, HEADS, VOCABULARY, LAYERS, EXPERTS = 64, 96, 4, 97, 2, 3
Q8_0, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32
KIND = {
    "Q8_0": Q8_0,
    "Q4_0": gguf.GGMLQuantizationType.Q4_0,
    "Q4_1": gguf.GGMLQuantizationType.Q4_1,
    "MXFP4": gguf.GGMLQuantizationType.MXFP4,
    "F32": F32,
}


def layer_of(architecture):
    """Return the tensors of a layer, shapes in torch's order."""
    attention = {
        "attn_q.weight": (HIDDEN, HIDDEN),
        "attn_k.weight": (HIDDEN // 2, HIDDEN),
        "attn_v.weight": (HIDDEN // 2, HIDDEN),
        "attn_output.weight": (HIDDEN, HIDDEN),
    }
    gated = {"ffn_gate": (MIDDLE, HIDDEN), "ffn_up": (MIDDLE, HIDDEN), "ffn_down": (HIDDEN, MIDDLE)}
    norms = {"attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,)}
    if architecture == "gpt2":
        return {
            "attn_qkv.weight": (3 * HIDDEN, HIDDEN),
            "attn_qkv.bias": (3 * HIDDEN,),
            "attn_output.weight": (HIDDEN, HIDDEN),
            "attn_output.bias": (HIDDEN,),
            "ffn_up.weight": (4 * HIDDEN, HIDDEN),
            "ffn_up.bias": (4 * HIDDEN,),
            "ffn_down.weight": (HIDDEN, 4 * HIDDEN),
            "ffn_down.bias": (HIDDEN,),
            **norms,
            **{name.replace("weight", "bias"): shape for name, shape in norms.items()},
        }
    if architecture == "llama":
        return attention | norms | {f"{name}.weight": shape for name, shape in gated.items()}
    return {
        **attention,
        **norms,
        "attn_q_norm.weight": (HIDDEN // HEADS,),
        "attn_k_norm.weight": (HIDDEN // HEADS,),
        "ffn_gate_inp.weight": (EXPERTS, HIDDEN),
        # Of the size that transformers takes, whatever the file says.
        "ffn_gate_exps.weight": (EXPERTS, 768, HIDDEN),
        "ffn_up_exps.weight": (EXPERTS, 768, HIDDEN),
        "ffn_down_exps.weight": (EXPERTS, HIDDEN, 768),
    }


def write_gguf(folder: Path, architecture: str, kind: str, **options) -> Path:
    """Write a tiny model of random values, matrices as blocks of a kind.

    ``options``: of the writer, such as how many tensors a file has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, architecture, **options)
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(MIDDLE)
    writer.add_head_count(HEADS)
    if architecture != "gpt2":
        writer.add_head_count_kv(HEADS // 2)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(1e4)
    if architecture == "qwen3moe":
        writer.add_key_length(HIDDEN // HEADS)
        writer.add_value_length(HIDDEN // HEADS)
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(2)
    writer.add_vocab_size(VOCABULARY)
    tensors = {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if architecture == "gpt2":
        # Sizes that transformers reads from the tokenizer, or not at all.
        tensors |= {"token_embd.weight": (50257, HIDDEN), "position_embd.weight": (1024, HIDDEN)}
        tensors |= {"output_norm.bias": (HIDDEN,)}
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.{name}": s for name, s in layer_of(architecture).items()}
    rng = np.random.default_rng(0)
    for name, shape in tensors.items():
        values = rng.standard_normal(shape, np.float32) / (8 if len(shape) > 1 else 1)
        chosen = KIND[kind] if len(shape) > 1 else F32
        writer.add_tensor(name, gguf.quantize(values, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [("llama", "Q4_0"), ("llama", "F32"), ("gpt2", "Q8_0"), ("qwen3moe", "Q8_0")],
)
def test_weights_are_those_of_transformers_and_stay_in_the_file(tmp_path, architecture, kind):
    path = write_gguf(tmp_path, architecture, kind)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name).state_dict()
    model = load_checkpoint(path).model
    assert {name for name, _ in model.named_parameters()} <= set(expected)
    for name, weight in model.named_parameters():
        assert isinstance(weight, LazyWeight)
        assert torch.equal(weight.value(), expected[name])


def test_kept_integers_are_read_when_they_are_used(tmp_path):
    path = write_gguf(tmp_path, "llama", "Q8_0")
    floats, kept = load_checkpoint(path).model, load_checkpoint(path, integers=True).model
    layers = {n: m for n, m in kept.named_modules() if isinstance(m, StoredLinear)}
    assert len(layers) == 7 * LAYERS
    for name, layer in layers.items():
        assert isinstance(layer.stored.integers, LazyWeight)
        assert torch.equal(layer.weight, floats.get_submodule(name).weight.value())


def test_weights_are_not_restored_for_tensors_that_are_others(tmp_path, monkeypatch):
    """Twice each, to be marked and to be compared: not once for each tensor of the same shape."""
    path = write_gguf(tmp_path, "llama", "Q8_0")
    restored = []
    value_of = gguf_weights.value_of
    monkeypatch.setattr(gguf_weights, "value_of", lambda w: restored.append(w) or value_of(w))
    load_checkpoint(path, integers=True)
    assert len(restored) == 2 * 7 * LAYERS


def decoded_tensors(monkeypatch):
    """Return the names of the tensors whose integers are decoded from now on."""
    decoded = []
    integers = gguf_weights._integers
    monkeypatch.setattr(
        gguf_weights, "_integers", lambda t, rows: decoded.append(t.name) or integers(t, rows)
    )
    return decoded


def test_blocks_are_decoded_once_and_when_they_are_used(tmp_path, monkeypatch):
    path = write_gguf(tmp_path, "llama", "Q4_1")
    decoded = decoded_tensors(monkeypatch)
    model = load_checkpoint(path, integers=True).model
    assert not decoded
    attention = model.model.layers[0].self_attn
    stored = [layer.stored for layer in (attention.q_proj, attention.k_proj, attention.v_proj)]
    whole = joined(stored)
    assert not decoded
    made = [part.value() for part in (whole.integers, whole.scale, whole.offset)]
    assert [part.shape for part in made] == [(HIDDEN, 16), (2, 2 * HIDDEN), (2, 2 * HIDDEN)]
    assert sorted(decoded) == [f"blk.0.attn_{name}.weight" for name in "kqv"]


def test_the_last_decoded_weight_is_freed_with_the_model(tmp_path):
    path = write_gguf(tmp_path, "llama", "Q8_0")
    model = load_checkpoint(path, integers=True).model
    integers = weakref.ref(model.model.layers[0].mlp.up_proj.stored.integers.value())
    assert integers() is not None
    del model
    gc.collect()
    assert integers() is None


@pytest.mark.parametrize("kind", ["Q8_0", pytest.param("Q4_1", marks=pytest.mark.slow)])
def test_experts_stay_integers(tmp_path, monkeypatch, kind):
    path = write_gguf(tmp_path / "source", "qwen3moe", kind)
    decoded = decoded_tensors(monkeypatch)
    report = export_causal_lm(path, tmp_path / "out", dtype="float16", quant="keep", check=False)
    layout = f"int{8 if kind == 'Q8_0' else 4}, groups of 32"
    # Joint query, key and value; output; experts before and after the activation.
    assert report.integers == {layout: 4 * LAYERS}
    assert report.nodes["npu::NPUGroupedMatmul"] == 2 * LAYERS
    assert not [kept for kept in report.kept if "experts" in str(kept)]
    names = [name for name in decoded if "_exps" in name]
    assert len(names) == 3 * LAYERS * EXPERTS
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    types = {i.name: i.data_type for i in graph.initializer}
    grouped = [node for node in graph.node if node.op_type == "NPUGroupedMatmul"]
    integer = onnx.TensorProto.INT8 if kind == "Q8_0" else onnx.TensorProto.INT32
    assert [types[node.input[1]] for node in grouped] == [integer] * (2 * LAYERS)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    model.is_quantized = False  # to transformers, which has restored floats
    for provider in PROVIDERS:
        # Only float16 rounds, as it does in transformers; scales and offsets of Q4_1 once more.
        assert rms(errors(model, tmp_path / "out", provider)) <= 3 * rms(halved_errors(model))


def test_a_file_is_not_resident_after_a_use(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "file.gguf", "llama")
    values = np.random.default_rng(0).standard_normal((4096, 1024), np.float32)
    writer.add_tensor("w", gguf.quantize(values, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = gguf.GGUFReader(tmp_path / "file.gguf").tensors[0]

    def resident() -> int:
        """Bytes of the mapped file that are resident."""
        lines = Path("/proc/self/smaps").read_text().splitlines()
        start = next(i for i, line in enumerate(lines) if line.endswith("file.gguf"))
        return next(int(li.split()[1]) for li in lines[start:] if li.startswith("Rss:")) * 1024

    tensor.data.sum()
    assert resident() >= tensor.n_bytes
    assert np.array_equal(floats_of(tensor), gguf.dequantize(tensor.data[:], Q8_0))
    floats_of(tensor)
    assert resident() < 2**20


def test_tensors_without_floats_are_an_error(tmp_path):
    path = write_gguf(tmp_path, "llama", "F32")
    reader = gguf.GGUFReader(path, "r+")
    entry = next(t for t in reader.tensors if t.name == "blk.0.attn_q.weight")
    entry.field.parts[4][0] = gguf.GGMLQuantizationType.I32
    reader.data.flush()
    with pytest.raises(ExportError, match=r"cannot load .*model.gguf: .*I32"):
        load_checkpoint(path)


@pytest.mark.parametrize("named", [True, False])
def test_parts_of_a_model_are_refused(tmp_path, named):
    """Not for weights that it lacks, nor by asking which of the files is meant."""
    write_gguf(tmp_path, "llama", "Q8_0", split_max_tensors=12)
    files = sorted(tmp_path.glob("*.gguf"))
    assert len(files) == 2
    with pytest.raises(ExportError, match=r"is one of 2 parts of a model: merge them with"):
        load_checkpoint(files[1] if named else tmp_path)


def test_kinds_without_integers_are_named(tmp_path):
    """Not as floats alone: the file is quantised."""
    path = write_gguf(tmp_path / "in", "llama", "MXFP4")
    with pytest.raises(ArgumentError, match=r"got floats: the file has weights .* as MXFP4"):
        export_causal_lm(path, tmp_path / "out", dtype="float16", quant="keep")

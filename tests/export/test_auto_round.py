"""Checkpoints of auto-round, which has several layouts, and of AWQ's version gemv.

The packers follow the tools' own documents, bit by bit, and share no code with the readers.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnxruntime_npu.errors import ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint

from .conftest import tiny_model
from .stored_integers import (
    GROUP,
    Quantised,
    as_gptq,
    projections,
    save,
    tensor,
    words_along_rows,
)
from .test_causal_lm import PROVIDERS
from .test_gptq import assert_same_weights
from .test_quantized import errors, halved_errors, rms

CONFIG = {
    "quant_method": "auto-round", "bits": 4, "group_size": GROUP, "sym": False,
    "data_type": "int", "iters": 200, "autoround_version": "0.16.1",
    "block_name_to_quantize": "model.layers",
}  # fmt: skip
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # of eight outputs, in AWQ's words


def without_order(w, **options):
    """Return GPTQ's tensors; auto-round has no activation order."""
    return {name: t for name, t in as_gptq(w, **options).items() if name != "g_idx"}


def as_awq(w):
    """Return AWQ's tensors of any bits: a stream of them, with each eight outputs in order."""

    def words(values):
        eights = values.reshape(values.shape[0], -1, 8)[..., ORDER]
        return tensor(words_along_rows(eights.reshape(values.shape).T, w.bits).T)

    scales = tensor(w.scale.T).half()
    return {"qweight": words(w.q.T), "qzeros": words(w.zero.T), "scales": scales}


def as_gemv(w):
    """Return the tensors of AWQ's version gemv for groups of 32: four words of zero points."""
    groups = w.zero.shape[1]
    padded = -(-groups // 32) * 32
    zeros, scales = (np.zeros((len(w.zero), padded), kind) for kind in (int, np.float16))
    zeros[:, :groups], scales[:, :groups] = w.zero, w.scale
    return {
        "qweight": tensor(words_along_rows(w.q.T, 4).T),
        "qzeros": tensor(words_along_rows(zeros.T, 4).T),
        "scales": tensor(scales),
    }


def checkpoint(path, config, pack, bits_of=lambda name: 4, kind="llama", group=GROUP):
    """Save a tiny model; return it in floats."""
    rng, model, stored = np.random.default_rng(3), tiny_model(kind), {}
    for name, layer in projections(model).items():
        bits = bits_of(name)
        if bits == 16:
            continue
        w = Quantised(*layer.weight.shape, bits, rng, group=group)
        stored |= {f"{name}.{key}": value for key, value in pack(w).items()}
        with torch.no_grad():
            layer.weight.copy_(w.weight)
    return save(path, model, stored, config)


def version_1(w):
    return without_order(w, version=1)


def version_2(w):
    return without_order(w, version=2)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    ("packing", "pack"),
    [
        ("auto_round:auto_gptq", version_1),
        ("auto_round:auto_gptq:exllamav2", version_1),
        ("auto_round:gptq", version_1),
        ("auto_round:gptqmodel", version_2),
        ("auto_round", version_2),
        ("auto_round:exllamav2", version_2),
    ],
)
def test_layouts_of_gptq(tmp_path, packing, pack, bits):
    config = {**CONFIG, "packing_format": packing, "bits": bits}
    model = checkpoint(tmp_path, config, pack, lambda _: bits)
    loaded = load_checkpoint(tmp_path)
    assert loaded.quantization == "auto-round" and loaded.warnings == []
    assert_same_weights(loaded, model)


@pytest.mark.parametrize("bits", [4, 5, 6, 7])
def test_layout_of_awq(tmp_path, bits):
    config = {**CONFIG, "packing_format": "auto_round:auto_awq", "bits": bits}
    model = checkpoint(tmp_path, config, as_awq, lambda _: bits)
    assert_same_weights(load_checkpoint(tmp_path), model)


@pytest.mark.parametrize("method", ["auto-round", "intel/auto-round"])
@pytest.mark.parametrize(
    ("described", "pack"),
    [
        ({}, version_1),
        ({"packing_format": "auto", "backend": "auto"}, version_1),
        ({"backend": "auto_round:gptq:exllamav2"}, version_1),
        ({"backend": "auto_round:exllamav2"}, version_2),
        ({"packing_format": "auto_round:auto_gptq", "backend": "exllamav2"}, version_1),
    ],
)
def test_older_names_of_the_layout(tmp_path, method, described, pack):
    model = checkpoint(tmp_path, {**CONFIG, "quant_method": method, **described}, pack)
    assert_same_weights(load_checkpoint(tmp_path), model)


def test_layers_have_bits_of_their_own(tmp_path):
    """As extra_config lists them: more bits for some layers, and floats for others."""

    def bits_of(name):
        return 8 if "down" in name else 16 if "o_proj" in name else 4

    extra = {
        "model.layers.0.mlp.down_proj": {"bits": 8}, "model.layers.1.mlp.down_proj": {"bits": 8},
        ".*o_proj.*": {"bits": 16, "data_type": "float"},
    }  # fmt: skip
    config = {**CONFIG, "packing_format": "auto_round:auto_gptq", "extra_config": extra}
    model = checkpoint(tmp_path / "source", config, version_1, bits_of)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.gaps == []
    assert report.integers == {f"int4, groups of {GROUP}": 4, f"int8, groups of {GROUP}": 2}
    for provider in PROVIDERS:
        # Only float16 rounds, as it does in transformers.
        assert rms(errors(model, tmp_path / "out", provider)) <= 2 * rms(halved_errors(model))


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"packing_format": "auto_round:fp8_static", "data_type": "fp8"},
         r"expected auto-round's packing_format .*, got 'auto_round:fp8_static' of fp8$"),
        ({"packing_format": "auto_round:llm_compressor", "data_type": "mx_fp"}, r"of mx_fp$"),
        ({"packing_format": "auto_round:mlx"}, r"got 'auto_round:mlx' of int$"),
        ({"act_bits": 8}, r"expected auto-round's weights of float activations, got act_bits 8$"),
        ({"rotation_config": {"type": "hadamard"}}, r"weights as they are, got rotation_config$"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused(tmp_path, described, message):
    checkpoint(tmp_path, {**CONFIG, **described}, version_1)
    with pytest.raises(ExportError, match=message):
        load_checkpoint(tmp_path)


def test_words_of_awq_along_the_inputs(tmp_path):
    """Version gemv: no order inside words, and zero points of no group at the end."""
    config = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}
    model = checkpoint(tmp_path, config, as_gemv, group=32)
    assert_same_weights(load_checkpoint(tmp_path), model)

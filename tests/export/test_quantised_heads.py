"""Checkpoints whose head has integers, too, exported with them."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
import torch
from onnxruntime_npu.exporter import export_causal_lm

from .conftest import tiny_model
from .stored_integers import FORMATS, Quantised, as_stored, projections, save
from .test_causal_lm import PROVIDERS
from .test_quantized import errors, halved_errors, rms

VOCABULARY = 96


def checkpoint(path, kind, head_bits):
    """Save a tiny model with int4 layers, and a head that is no embedding; return it in floats."""
    model, rng = copy.deepcopy(tiny_model(kind, vocab_size=VOCABULARY)), np.random.default_rng(3)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    config, bits, pack = FORMATS["gptq"]
    stored = {}
    for name, layer in {**projections(model), "lm_head": model.lm_head}.items():
        w = Quantised(*as_stored(layer).shape, head_bits if name == "lm_head" else bits, rng)
        stored |= {f"{name}.{key}": value for key, value in pack(w).items()}
        with torch.no_grad():
            as_stored(layer).copy_(w.weight)
    return save(path, model, stored, config)


# llama is rebuilt, gpt2 exported by its own forward pass.
@pytest.mark.parametrize("quant_head", [False, True])
@pytest.mark.parametrize("kind", ["llama", "llama-tied", "gpt2"])
def test_integers_of_a_head_are_exported_as_they_are(tmp_path, kind, quant_head):
    model = checkpoint(tmp_path / "source", kind, head_bits=8)
    options = {"dtype": "float16", "quant": "keep", "quant_head": quant_head, "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    assert report.gaps == [] and report.integers["int8, groups of 16"] == 1
    assert not any(part["role"] == "head" for part in report.kept)
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    shapes = {each.name: (each.data_type, list(each.dims)) for each in graph.initializer}
    heads = [shape for shape in shapes.values() if shape[1] == [64, VOCABULARY]]
    assert heads == [(onnx.TensorProto.INT8, [64, VOCABULARY])]
    for provider in PROVIDERS:
        # Only float16 rounds, as it does in transformers.
        assert rms(errors(model, tmp_path / "out", provider)) <= 2 * rms(halved_errors(model))


def test_a_head_that_becomes_floats_is_listed(tmp_path):
    checkpoint(tmp_path / "source", "qwen3_moe", head_bits=8)
    options = {"dtype": "float16", "quant": "keep", "expert_parallel": 2, "check": False}
    report = export_causal_lm(tmp_path / "source", tmp_path / "out", **options)
    (head,) = [part for part in report.kept if part["role"] == "head"]
    assert head["reason"] == "taken as floats: every rank has the whole head in floats"

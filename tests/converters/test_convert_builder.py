"""Files of onnxruntime-genai's builder are converted whole, and compute what they did."""

from __future__ import annotations

import runpy
import sys

import numpy as np
import onnx
import pytest
import torch
import transformers
from comparison import MICROSOFT, PROVIDERS, run
from onnxruntime_npu.converters import convert

VOCABULARY, LAYERS, KV_HEADS, HEAD = 104, 2, 2, 16
FUSED = {
    "npu::NPUAddRmsNorm": 2 * LAYERS,
    "npu::NPUFusedInferAttentionScore": LAYERS,
    "npu::NPURmsNorm": 1,
    "npu::NPURotaryMul": LAYERS,  # queries and keys together
    "npu::NPUSwiGlu": LAYERS,
}
INTEGERS = "npu::NPUWeightQuantBatchMatmulV2"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny random llama, as a directory with what the builder reads."""
    folder = tmp_path_factory.mktemp("checkpoint")
    torch.manual_seed(2)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # so that attention and norms matter
            parameter.mul_(4) if parameter.dim() > 1 else parameter.add_(
                torch.randn_like(parameter) / 5
            )
    model.save_pretrained(folder)
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({str(i): i for i in range(VOCABULARY)}, unk_token="0")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words))
    fast.save_pretrained(folder)
    return folder


def build(checkpoint, folder, precision, monkeypatch):
    command = ["builder", "-i", checkpoint, "-o", folder, "-p", precision, "-e", "cpu"]
    command += ["-c", folder / "cache", "--extra_options", "shared_embeddings=true"]
    monkeypatch.setattr(sys, "argv", [str(part) for part in command])
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    return folder / "model.onnx"


def operators(path):
    return {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}


def step(ids, mask, past=None):
    """Return the inputs of a step; without a past its caches are empty."""
    inputs = {"input_ids": ids, "attention_mask": mask}
    for layer in range(LAYERS):
        for i, name in enumerate(("key", "value")):
            empty = np.zeros((len(ids), KV_HEADS, 0, HEAD), np.float32)
            inputs[f"past_key_values.{layer}.{name}"] = empty if past is None else past[layer][i]
    return inputs


def caches(path, results):
    """Return the caches of a step by layer."""
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.output]
    named = dict(zip(names, results, strict=True))
    kinds = ("key", "value")
    return [[named[f"present.{layer}.{kind}"] for kind in kinds] for layer in range(LAYERS)]


@pytest.mark.parametrize(
    ("precision", "bound"),
    [
        ("fp32", 1e-5),  # sums in another order
        # Both round blocks of activations to int8, and ours everything between to bfloat16: for
        # every one of its 9 products in a row 2 ** -9, and the integers next to half a step.
        ("int4", 9 * 2**-8),
    ],
)
def test_builder_file_computes_the_same(tmp_path, checkpoint, monkeypatch, precision, bound):
    source = build(checkpoint, tmp_path, precision, monkeypatch)
    report = convert(source, tmp_path / "npu.onnx")
    integers = {INTEGERS: 4 * LAYERS + 1} if precision == "int4" else {}
    assert ("GatherBlockQuantized" in operators(source)) == (precision == "int4")
    fused = {name: n for name, n in report.nodes.items() if name.startswith("npu::")}
    assert fused == FUSED | integers
    assert not report.left and not report.without_body
    assert not any(name.startswith(MICROSOFT) for name in report.nodes)

    generator = np.random.default_rng(1)
    ids = generator.integers(3, VOCABULARY, (2, 7))
    mask = np.ones((2, 7), np.int64)
    mask[1, 4:] = 0  # the builder's files are padded behind a prompt
    prompt = step(ids, mask)
    results = run(source, PROVIDERS[1], prompt)
    past = caches(source, results)
    mask = np.concatenate((mask[:, :4], np.ones((2, 4), np.int64)), axis=1)
    mask[1, 5:] = 0
    decode = step(ids[:, 5:6], mask, past)
    steps = [(prompt, results, (7, 4)), (decode, run(source, PROVIDERS[1], decode), (8, 5))]
    for provider in PROVIDERS:
        for inputs, wanted, lengths in steps:
            actual = run(tmp_path / "npu.onnx", provider, inputs)
            assert [a.shape for a in actual] == [w.shape for w in wanted]
            for row, length in enumerate(lengths):
                new = min(length, inputs["input_ids"].shape[1])
                pairs = [(actual[0][row, :new], wanted[0][row, :new])]
                pairs += [
                    (ours[row, :, :length], theirs[row, :, :length])
                    for layer in zip(caches(source, actual), caches(source, wanted), strict=True)
                    for ours, theirs in zip(*layer, strict=True)
                ]
                for ours, theirs in pairs:
                    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
                    assert error <= bound, (provider, length, error)

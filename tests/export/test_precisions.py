"""Every architecture in bfloat16: logits of the NPU, of the function bodies and of eager torch."""

from __future__ import annotations

import shutil
from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnxruntime_npu.exporter.module_replacement import convert_weights

from .conftest import CONFIGS, CONTINUATIONS, PROMPTS, expected_logits, marks_of, tiny_model
from .kinds import REPEATED_KINDS
from .test_causal_lm import PROVIDERS, forced_logits

BFLOAT16, FLOAT = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
# Each run compares this one, and a Llama in test_causal_lm.py.
QUICK = {"gpt_oss"}
KINDS = [
    pytest.param(kind, marks=marks_of(kind, REPEATED_KINDS, set(CONFIGS) - QUICK))
    for kind in CONFIGS
]


def logits_of(model):
    """Return transformers' logits for the forced tokens, [rows, steps, V]."""
    return np.stack([expected_logits(model, *p) for p in zip(PROMPTS, CONTINUATIONS, strict=True)])


def with_weights_of_file(kind):
    """Return the model with the weights of an export in bfloat16, which computes in float32."""
    model = tiny_model(kind)
    convert_weights(model, torch.bfloat16)
    return model.float()


def in_bfloat16(kind):
    """Return transformers' model in bfloat16, but for the weights that it keeps in float32."""
    model = tiny_model(kind).bfloat16()
    kept = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, parameter in model.named_parameters():
        if any(part in name for part in kept):
            parameter.data = parameter.data.float()
    return model


def rms(values):
    return float(np.sqrt((values**2).mean()))


def upcast(message):
    """Make everything of bfloat16 in a message of ONNX float32, in place."""
    if isinstance(message, onnx.TensorProto):
        if message.data_type == BFLOAT16:
            floats = numpy_helper.to_array(message).astype(np.float32)
            message.CopyFrom(numpy_helper.from_array(floats, message.name))
        return
    if isinstance(message, onnx.TypeProto.Tensor) and message.elem_type == BFLOAT16:
        message.elem_type = FLOAT
    if isinstance(message, onnx.AttributeProto) and message.name in ("to", "dtype"):
        message.i = FLOAT if message.i == BFLOAT16 else message.i
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in value if hasattr(value, "__len__") else [value]:
                upcast(each)


def upcast_copy(directory, place):
    """Return a copy of an exported directory that computes in float32 from the same weights."""
    shutil.copytree(directory, place)
    model = onnx.load(place / "model.onnx")
    upcast(model)
    onnx.save(model, place / "model.onnx")
    return place


def emitted_nodes(report):
    """Return how many nodes an operator has: norms of a sum that is float32 stay apart from it."""
    nodes = Counter()
    for op, counts in report.replaced.items():
        nodes[op.replace("npu_add_rms_norm", "npu_rms_norm")] += counts["emitted"]
    return nodes


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_within_the_rounding_of_transformers(exported, tmp_path, kind):
    _, directory, report = exported(kind, cache="dynamic", dtype="bfloat16")
    *_, exact_report = exported(kind, cache="dynamic")
    emitted, exact_emitted = map(emitted_nodes, (report, exact_report))
    assert report.gaps == [] and emitted == exact_emitted
    exact = logits_of(with_weights_of_file(kind))
    theirs = rms(logits_of(in_bfloat16(kind)) - exact)
    # Both round at every step; the rounding errors are of similar size, not equal.
    ours = rms(forced_logits(directory, PROVIDERS[0], PROMPTS, CONTINUATIONS) - exact)
    assert ours <= 2 * theirs
    # onnxruntime's CPU has no arithmetic of bfloat16: there the bodies are computed in float32, so
    # that only constants are rounded, such as factors and 1 + the weight of a norm.
    floats = upcast_copy(directory, tmp_path / "floats")
    bodies = forced_logits(floats, PROVIDERS[1], PROMPTS, CONTINUATIONS)
    assert rms(bodies - exact) <= theirs

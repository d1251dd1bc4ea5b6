"""Caches of every architecture: their proofs, with which an export begins, masks, and memory."""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnxruntime_npu.exporter.architectures import ARCHITECTURES, RECOMPUTED
from onnxruntime_npu.exporter.arguments import DEFAULT_OPSET
from onnxruntime_npu.exporter.caches import CACHES, CacheChoice
from onnxruntime_npu.exporter.original import keep_original
from onnxruntime_npu.exporter.original_cache import masking_of
from onnxruntime_npu.exporter.proof import NotProven, attempt
from onnxruntime_npu.exporter.recomputed import recompute
from onnxruntime_npu.exporter.roles.masking import Masking
from onnxruntime_npu.exporter.substitution import substitute
from onnxruntime_npu.exporter.whole_model import WholeModelProbe
from onnxruntime_npu.generation.decoding import StepModel
from onnxruntime_npu.opdef import torch_library
from transformers import masking_utils

from .conftest import CONTINUATIONS, PROMPTS, marks_of, tiny_model
from .kinds import REPEATED_KINDS
from .test_causal_lm import PROVIDERS, forced_logits

FLOATS = [CacheChoice(cache, False, "last") for cache in CACHES]
INT8 = [CacheChoice(cache, True, "last") for cache in CACHES]


@pytest.fixture(autouse=True)
def _registered():
    torch_library.register()


def prove(model, rebuilt, choices):
    """Return the reason for each cache that a model cannot have, None for others."""
    probe = attempt(WholeModelProbe, model)
    if rebuilt:
        decoder, findings = substitute(model)
    elif model.config.model_type in {each.model_type for each in RECOMPUTED}:
        decoder, findings = recompute(model, "for a test", DEFAULT_OPSET)
    else:
        decoder, findings = keep_original(model, "for a test")
    reasons = {}
    for choice in choices:
        try:
            probe.proven(decoder, choice, findings)
            reasons[str(choice)] = None
        except NotProven as error:
            reasons[str(choice)] = str(error)
    return reasons


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(a, marks=marks_of(a.model_type, REPEATED_KINDS, slow=())) for a in ARCHITECTURES],
    ids=lambda a: a.model_type,
)
def test_caches_are_proven_as_listed(architecture):
    reasons = prove(tiny_model(architecture.model_type), architecture.rebuilt, [*FLOATS, *INT8])
    possible = {cache for cache, reason in reasons.items() if reason is None}
    # Blocks and integers need the fused operator, which reads the cache as it is.
    is_fused = "paged" in architecture.caches or architecture.model_type == "zaya"
    rounded = [c for c in INT8 if c.cache in architecture.caches] if is_fused else []
    assert possible == {*architecture.caches, *map(str, rounded)}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("jetmoe", "attention over such a cache needs the fused operator: attention reads other"),
        ("gemma2", "attention over such a cache needs the fused operator: its scores are capped"),
    ],
)
def test_reasons_name_what_is_in_the_way(kind, reason):
    assert prove(tiny_model(kind), False, FLOATS[2:])["paged"].startswith(reason)


def test_reasons_name_attention_that_is_not_recognised():
    """Falcon's, where it adds its bias twice, and Bloom's by parts of a projection."""
    model = tiny_model("falcon-alibi")
    model.config._attn_implementation = "eager"
    reason = "its attention is not called through transformers' interface"
    assert prove(model, False, FLOATS[2:])["paged"] == reason
    model = tiny_model("bloom", pretraining_tp=2, slow_but_exact=True)
    reason = "its forward pass takes no position_ids"
    assert prove(model, False, FLOATS[2:])["paged"] == reason


def test_queries_are_scaled_by_positions_in_rows_of_any_length():
    """Beyond some thousand tokens in Llama 4, which counts those of a growing cache."""
    model = tiny_model("llama4_text", floor_scale=2, attn_scale=0.5)
    assert set(prove(model, False, FLOATS[:2]).values()) == {None}


def test_scaled_queries_need_attention_of_the_interface(monkeypatch):
    model = tiny_model("llama4_text")

    def refuse(_):
        raise ValueError("only flash_attention_3")

    monkeypatch.setattr(model, "set_attn_implementation", refuse)
    with pytest.raises(NotProven, match="scaled by positions that it counts itself"):
        keep_original(model, "for a test")


def test_latents_lie_in_every_cache():
    for changes in ({}, {"q_lora_rank": None}):
        reasons = prove(tiny_model("deepseek_v3", **changes), False, [*FLOATS, *INT8])
        assert set(reasons.values()) == {None}


def test_masks_of_another_kind_are_read_by_rows_and_not_by_blocks(monkeypatch):
    model = tiny_model("granite", attention_chunk_size=4)
    module = sys.modules[type(model).__module__]
    monkeypatch.setattr(module, "create_causal_mask", masking_utils.create_chunked_causal_mask)
    reasons = prove(model, False, [*FLOATS, INT8[1]])
    assert reasons["dynamic"] is None and reasons["static"] is None
    for cache in ("paged", "static int8"):
        assert reasons[cache].endswith("its mask is neither causal nor a sliding window")


def within(window):
    return masking_utils.sliding_window_causal_mask_function(window)


@pytest.mark.parametrize(
    ("function", "size", "expected"),
    [
        (masking_utils.causal_mask_function, None, Masking(None)),
        (within(7), 7, Masking(7)),
        (within(4096), 4096, Masking(4096)),  # beyond the positions that the model was made for
        (within(6), 7, None),
        (within(8), 7, None),
        (within(300), None, None),
        (masking_utils.bidirectional_mask_function, None, None),
        (masking_utils.chunked_causal_mask_function(7, torch.zeros(1)), 7, None),
        (masking_utils.or_masks(within(7), lambda b, h, q, k: k == 0), 7, None),  # a sink
    ],
)
def test_mask_functions_are_recognised_by_what_they_hide(function, size, expected):
    assert masking_of(function, size, 512) == expected


def undefined(model, names, sizes, make=StepModel._buffers):
    """Make buffers as StepModel does, with NaN in them, and integers with scales of NaN."""
    buffers = make(model, names, sizes)
    for buffer in buffers:
        integers = "int8" in buffer.data_type()
        content = np.full(buffer.shape(), 77 if integers else np.nan)
        content = content.astype(np.int8 if integers else np.float32)
        if buffer.device_name() == "cpu":
            buffer.update_inplace(content)
        else:
            ort.copy_tensors([ort.OrtValue.ortvalue_from_numpy(content)], [buffer])
    return buffers


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("mistral", {"cache_dtype": "int8"}),
        ("gemma3_text", {}),
        ("gpt_oss", {}),
        ("deepseek_v3", {}),
        ("qwen3_next", {}),
    ],
)
def test_undefined_memory_of_a_cache_is_not_read(exported, monkeypatch, kind, options, provider):
    _, directory, _ = exported(kind, cache="static", **options)
    expected = forced_logits(directory, provider, PROMPTS, CONTINUATIONS)
    monkeypatch.setattr(StepModel, "_buffers", undefined)
    actual = forced_logits(directory, provider, PROMPTS, CONTINUATIONS)
    np.testing.assert_array_equal(actual, expected)

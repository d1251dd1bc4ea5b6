"""Models whose layers keep states of a fixed size: what only they have, beside their forms."""

from __future__ import annotations

import sys

import pytest
import torch
from onnxruntime_npu import NPUModelForCausalLM
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.original import keep_original
from onnxruntime_npu.opdef import torch_library

from .conftest import PROMPTS, tiny_model
from .genai_runs import generator_tokens, open_in_genai
from .test_causal_lm import PROVIDERS
from .test_paged import greedy


def test_beams_take_their_states_along(exported):
    model, directory, _ = exported("falcon_h1", cache="dynamic")
    ours = NPUModelForCausalLM.from_pretrained(directory, providers=PROVIDERS[:1])
    padding = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (padding - len(row)) + row for row in PROMPTS])
    mask = torch.tensor([[0] * (padding - len(row)) + [1] * len(row) for row in PROMPTS])
    options = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, attention_mask=mask, **options)
    assert ours.generate(ids, attention_mask=mask, **options).tolist() == expected.tolist()


def test_padding_between_tokens_of_a_row_is_refused(exported):
    _, directory, _ = exported("falcon_h1", cache="dynamic")
    ours = NPUModelForCausalLM.from_pretrained(directory, providers=PROVIDERS[:1])
    cache = ours.new_cache(20)
    begun = torch.tensor([[0, 5, 6], [7, 8, 9]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    ours(begun, attention_mask=mask, past_key_values=cache)  # padding before the first token
    mask = torch.cat([mask, torch.tensor([[0, 1], [1, 1]])], dim=1)
    with pytest.raises(ArgumentError, match=r"as many new tokens in every row.*, got \[1, 2\]"):
        ours(torch.tensor([[0, 5], [7, 8]]), attention_mask=mask, past_key_values=cache)


@pytest.mark.parametrize("kind", ["lfm2", "falcon_h1"])  # convolutions alone, and recurrences
def test_generator_of_genai_keeps_the_states(genai, exported, kind):
    model, directory, _ = exported(kind, cache="dynamic")
    tokens = generator_tokens(open_in_genai(directory, PROVIDERS[0]), PROMPTS[1], 12)
    assert tokens == greedy(model, PROMPTS[1], 12)


@pytest.mark.parametrize("cache", ["static", "paged"])
def test_other_caches_are_refused_with_the_reason(tmp_path, cache):
    message = rf"\(lfm2\): .* with a {cache} cache: its states .* pass cache='dynamic' and"
    with pytest.raises(ExportError, match=message):
        export_causal_lm(tiny_model("lfm2"), tmp_path, cache=cache)
    assert not list(tmp_path.iterdir())


def test_recurrence_that_computes_something_else_is_not_replaced(monkeypatch):
    torch_library.register()
    model = tiny_model("mamba2")
    module = sys.modules[type(model).__module__]
    scan = module.mamba2_chunk_scan

    def without_decay(hidden_states, dt, A, *args, **options):
        return scan(hidden_states, dt, torch.zeros_like(A), *args, **options)

    monkeypatch.setattr(module, "mamba2_chunk_scan", without_decay)
    _, findings = keep_original(model, "a test")
    (kept,) = [part for part in findings.kept if part["role"] == "recurrence"]
    assert "output of the recurrence: differs by" in kept["reason"]

"""The check of a written file: what it measures, what it calls wrong, and what it says of it."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from onnxruntime_npu import cli
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.numeric_check import Reference, check_file, evaluation_text
from onnxruntime_npu.exporter.numeric_check.expectation import expected_departure
from onnxruntime_npu.exporter.numeric_check.passages import Passages
from onnxruntime_npu.exporter.report import ExportReport

from .conftest import tiny_model
from .stored_integers import checkpoint
from .test_causal_lm import PROVIDERS

LAYERS = 2


class Words:
    """A tokenizer of words: ids in the order in which they occur, after one that begins texts."""

    bos_token_id = 1

    def __call__(self, text, add_special_tokens=True):
        words = text.split()
        ids = {word: 2 + i for i, word in enumerate(dict.fromkeys(words))}
        return {"input_ids": [1] * add_special_tokens + [ids[word] for word in words]}


@pytest.fixture(scope="module")
def reference():
    return Reference.of(tiny_model("llama"), None)


def test_the_shipped_text_is_long_enough_to_measure_perplexity():
    assert len(evaluation_text().split()) > 1200
    assert evaluation_text().isascii()  # one token or more for every byte, whatever the tokenizer


def test_passages_are_parts_of_the_text_with_prompts_of_different_lengths():
    passages = Passages.of(Words(), 5000, 4096)
    assert passages.is_text
    assert len({len(prompt) for prompt in passages.prompts}) > 2
    assert {len(prompt) for prompt in passages.open_prompts} == {64}
    text = Words()(evaluation_text(), add_special_tokens=False)["input_ids"]
    for prompt, following in zip(passages.prompts, passages.following.tolist(), strict=True):
        assert prompt[0] == 1
        row = prompt[1:] + following
        assert any(text[i : i + len(row)] == row for i in range(len(text)))


@pytest.mark.parametrize(("vocabulary", "context"), [(97, 4096), (5000, 20), (5000, 2)])
def test_passages_fit_vocabulary_and_context(vocabulary, context):
    passages = Passages.of(Words(), vocabulary, context)
    assert passages.is_text == (vocabulary == 5000)
    assert vocabulary != 97 or "do not fit a vocabulary of 97" in passages.source
    rows = [p + f for p, f in zip(passages.prompts, passages.following.tolist(), strict=True)]
    assert all(0 <= token < vocabulary for row in rows for token in row)
    assert max(map(len, rows)) <= context and min(map(len, passages.prompts)) >= 1
    assert len(passages.open_prompts[0]) + passages.following.shape[1] <= context


def test_random_ids_are_any_but_that_of_padding():
    """Its embedding is zero, so that all experts and all keys of an indexer have equal scores."""
    padding = 3
    passages = Passages.of(None, 5, 64, padding)
    ids = {token for row in [*passages.prompts, *passages.following.tolist()] for token in row}
    assert ids == {0, 1, 2, 4}


def test_the_reference_is_what_transformers_computes(reference):
    model, passages = tiny_model("llama"), reference.passages
    row, prompt = 3, passages.prompts[3]
    whole = torch.tensor([prompt + passages.following[row].tolist()])
    labels = whole.clone()
    labels[:, : len(prompt)] = -100
    with torch.no_grad():
        loss = model(whole, labels=labels).loss.item()
        grown = model.generate(
            torch.tensor([passages.open_prompts[1]]),
            max_new_tokens=64,
            do_sample=False,
            eos_token_id=None,
        )
    assert reference.losses[row].mean() == pytest.approx(loss, rel=1e-5)
    assert reference.greedy[1].tolist() == grown[0, 64:].tolist()
    assert reference.leads.min() >= 0


@pytest.mark.parametrize(
    "options", [{}, {"cache": "static"}, {"cache": "paged"}, {"cache": "static", "logits": "all"}]
)
def test_float32_files_agree_on_both_providers(exported, reference, options):
    _, directory, report = exported("llama", **{"cache": "dynamic", **options})
    entry, failures = check_file(directory, reference, report, LAYERS)
    assert failures == []
    for provider in PROVIDERS:
        found = entry["providers"][provider]
        assert 0 < found["max_error"] < 1e-4
        assert found["same_greedy_tokens"] == [64] * 4
        assert found["perplexity"] == pytest.approx(entry["eager_perplexity"], rel=1e-5)


def test_bfloat16_errs_as_expected_and_does_not_run_on_the_cpu(exported, reference):
    _, directory, report = exported("llama", cache="dynamic", dtype="bfloat16")
    entry, failures = check_file(directory, reference, report, LAYERS)
    assert failures == []
    npu, cpu = (entry["providers"][provider] for provider in PROVIDERS)
    assert 1e-3 < npu["relative_error"] < entry["expected"]["logits"]
    assert "8 significant bits" in entry["expected"]["reason"]
    assert "onnxruntime has no kernel" in cpu["not_run"]


def test_each_rounding_of_integers_is_expected_by_itself():
    plain = report_of(quant="keep")
    cases = {
        "activations rounded to int8 inside": report_of(quant="keep", inner_precise=1),
        "int8 weights of the head": report_of(quant="keep", quant_head=True),
        "int4 weights": report_of(quant="w4a16"),
    }
    alone = expected_departure(plain, LAYERS)
    assert not any(reason in alone.reason for reason in cases)
    for reason, report in cases.items():
        expected = expected_departure(report, LAYERS)
        assert reason in expected.reason and expected.reason.startswith(alone.reason)
        assert expected.logits > alone.logits and expected.perplexity > alone.perplexity
    both = report_of(quant="w8a16", inner_precise=1, quant_head=True)
    reason = expected_departure(both, LAYERS).reason
    assert "int8 weights; activations rounded" in reason and "of the head" not in reason


def report_of(**options):
    return ExportReport(model="m", architecture="M", dtype="float16", opset=18, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"inner_precise": 1, "quant_head": True},
        pytest.param({"inner_precise": 1}, marks=pytest.mark.slow),
        pytest.param({"quant_head": True}, marks=pytest.mark.slow),
    ],
)
def test_rounded_activations_and_heads_of_kept_integers_err_as_expected(tmp_path, options):
    checkpoint(tmp_path / "in", "llama", "gptq")
    options = {"dtype": "float16", "quant": "keep", **options}
    report = export_causal_lm(tmp_path / "in", tmp_path / "out", **options)
    assert not [text for text in report.warnings if "check failed" in text]
    bound = report.check["expected"]["logits"]
    for provider in PROVIDERS:
        assert bound / 50 < report.check["providers"][provider]["relative_error"] < bound


def changed(directory, path, change):
    """Copy an export and change one of its weights; return the copy."""
    shutil.copytree(directory, path)
    model = onnx.load(path / "model.onnx")
    tensor = max(model.graph.initializer, key=lambda each: len(each.raw_data))
    values = onnx.numpy_helper.to_array(tensor).copy()
    change(values)
    tensor.raw_data = values.tobytes()
    onnx.save(model, path / "model.onnx", save_as_external_data=True, location="model.onnx.data")
    return path


def poisoned(values):
    values[3, 5] = np.nan


def scaled(values):
    values *= 1.01


def test_not_a_number_is_a_failure(exported, reference, tmp_path):
    _, directory, report = exported("llama", cache="dynamic")
    entry, failures = check_file(
        changed(directory, tmp_path / "x", poisoned), reference, report, LAYERS
    )
    assert failures == [f"{provider}: some logits are infinite or NaN" for provider in PROVIDERS]
    assert entry["providers"][PROVIDERS[0]] == {
        "error": "some logits are infinite or NaN",
        "seconds": entry["providers"][PROVIDERS[0]]["seconds"],
    }


def test_a_wrong_weight_is_a_failure(exported, reference, tmp_path):
    _, directory, report = exported("llama", cache="dynamic")
    _, failures = check_file(changed(directory, tmp_path / "x", scaled), reference, report, LAYERS)
    assert [line.split(":")[0] for line in failures] == PROVIDERS
    assert "expected logits within 0.0001 of their spread (float32 sums" in failures[0]


def test_other_greedy_tokens_are_a_failure_where_the_lead_is_clear(exported, reference):
    _, directory, report = exported("llama", cache="dynamic")
    greedy, leads = reference.greedy.copy(), reference.leads.copy()
    greedy[2, 40] += 1
    for lead, count in ((1.0, 2), (0.0, 0)):
        leads[2, 40] = lead
        doctored = dataclasses.replace(reference, greedy=greedy, leads=leads)
        entry, failures = check_file(directory, doctored, report, LAYERS)
        assert entry["providers"][PROVIDERS[0]]["same_greedy_tokens"] == [64, 64, 40, 64]
        assert len(failures) == count
        assert all("token 40 of greedy continuation 2, which leads by 1" in f for f in failures)


def test_a_worse_perplexity_on_text_is_a_failure(exported, reference):
    _, directory, report = exported("llama", cache="dynamic")
    as_text = dataclasses.replace(reference.passages, source="shipped text")
    doctored = dataclasses.replace(
        reference, passages=as_text, losses=reference.losses - np.log(1.5)
    )
    entry, failures = check_file(directory, doctored, report, LAYERS)
    assert entry["providers"][PROVIDERS[0]]["perplexity_rise"] == pytest.approx(0.5, rel=1e-4)
    assert "expected a perplexity at most 0.0% above" in failures[0] and "got 50.0%" in failures[0]


def test_export_writes_the_check_and_says_what_failed(tmp_path, capsys, monkeypatch):
    tiny_model("llama").save_pretrained(tmp_path / "in")
    assert cli.main(["export", str(tmp_path / "in"), str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    for provider in PROVIDERS:
        assert f"check: {provider}: logits differ by " in output
    assert "same greedy tokens: 64, 64, 64, 64 of 64" in output and "perplexity" not in output
    written = json.loads((tmp_path / "out" / "export_report.json").read_text())
    assert written["check"]["providers"][PROVIDERS[1]]["max_error"] < 1e-4
    assert written["check"]["peak_memory"] >= written["peak_memory"] > 2**20
    assert not [line for line in written["warnings"] if "check" in line]


def test_a_model_that_cannot_generate_eagerly_is_exported_unchecked(tmp_path, monkeypatch):
    def fails(model, tokenizer):
        raise RuntimeError("no cache")

    monkeypatch.setattr(Reference, "of", staticmethod(fails))
    report = export_causal_lm(tiny_model("llama"), tmp_path)
    assert report.check is None and (tmp_path / "model.onnx").exists()
    assert any("no check of the file" in text and "no cache" in text for text in report.warnings)


def test_a_file_that_does_not_run_is_a_failure(reference, exported, tmp_path):
    _, directory, report = exported("llama", cache="dynamic")
    shutil.copytree(directory, tmp_path / "x")
    (tmp_path / "x" / "model.onnx").write_bytes(b"no model")
    entry, failures = check_file(tmp_path / "x", reference, report, LAYERS)
    assert len(failures) == 2 and all("cannot run the file" in text for text in failures)
    assert set(entry["providers"]) == set(PROVIDERS)

"""Models whose experts are divided among ranks: together they generate what one rank does."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
import torch
from onnxruntime_npu import cli
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.generation import CausalLM

from .conftest import PROMPTS, tiny_model
from .test_gguf import write_gguf
from .test_tensor_parallel import errors_of_parts, started

RANK = Path(__file__).with_name("expert_parallel_rank.py")
NEW_TOKENS = 8


def _greedy(model, prompt):
    """Return what transformers' model generates, step by step without a cache."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_tokens_of_every_rank_equal_those_of_one(tmp_path, ranks):
    """Through sessions, also with heads divided among the ranks, and eagerly."""
    model = tiny_model("mixtral")
    expected = [_greedy(model, prompt) for prompt in PROMPTS]
    places = []
    for options in ({"cache": "static"}, {"tensor_parallel": ranks}):
        places.append(tmp_path / f"{len(places)}")
        report = export_causal_lm(model, places[-1], expert_parallel=ranks, **options)
        assert not report.gaps
        # After the experts of each of two layers, and after attention if heads are divided.
        sums = 4 if "tensor_parallel" in options else 2
        assert report.replaced["npu_mm_all_reduce_base"]["emitted"] == sums
    done = started(ranks, RANK, tmp_path, json.dumps(PROMPTS), "mixtral", *places)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(ranks):
        of_paths = json.loads((tmp_path / f"tokens_{rank}.json").read_text())
        assert of_paths == [expected] * (len(places) + 1)


@pytest.mark.exhaustive  # beside the tokens below
@pytest.mark.parametrize(
    "schemes",
    [("w8a8_dynamic",), ("w4a16", "w8a16", "w8a8")],
    ids=" ".join,
)
def test_quantised_parts_equal_the_quantised_whole(tmp_path, schemes):
    errors = errors_of_parts(tmp_path, tiny_model("mixtral"), schemes, expert_parallel=2)
    # float16: each rank's sum over its experts is rounded to 11 bits once more, in both layers. Of
    # activations that are integers, some change by one of 127 then.
    limits = {scheme: 4e-3 if scheme.endswith("a16") else 1e-2 for scheme in schemes}
    assert all(errors[scheme] <= limits[scheme] for scheme in schemes), errors


def _generated(place, ranks, folder):
    """Return the tokens of every rank of an exported model, or of the one of a whole model."""
    script = Path(__file__).with_name("greedy_rank.py")
    if ranks == 1:
        model = CausalLM(place)
        model.stop_tokens = frozenset()
        made = model.generate_tokens(PROMPTS, max_new_tokens=NEW_TOKENS)
        return [list(map(int, row)) for row in made.tokens]
    done = started(ranks, script, folder, json.dumps(PROMPTS), NEW_TOKENS, place)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *others = (json.loads((folder / f"tokens_{r}.json").read_text()) for r in range(ranks))
    assert all(other == first for other in others)
    return first


# A rank's sum over its experts is rounded to float16 once more: no two logits of these models that
# are first and second come so close.
@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param("w4a16", marks=pytest.mark.exhaustive),
        pytest.param("w8a16", marks=pytest.mark.exhaustive),
        pytest.param("w8a8", marks=pytest.mark.exhaustive),
        "w8a8_dynamic",
    ],
)
def test_quantised_parts_generate_the_tokens_of_the_quantised_whole(tmp_path, scheme):
    model, options = tiny_model("mixtral"), {"dtype": "float16", "quant": scheme, "check": False}
    if scheme == "w8a8":
        options["calibration"] = PROMPTS
    export_causal_lm(model, tmp_path / "whole", **options)
    report = export_causal_lm(model, tmp_path / "parts", expert_parallel=2, **options)
    assert not report.gaps and report.replaced["npu_mm_all_reduce_base"]["emitted"] == 2
    expected = _generated(tmp_path / "whole", 1, tmp_path)
    assert _generated(tmp_path / "parts", 2, tmp_path) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Q8_0", pytest.param("Q4_1", marks=pytest.mark.exhaustive)])
def test_parts_of_a_gguf_file_generate_the_tokens_of_the_whole(tmp_path, kind):
    """Of the blocks' integers; two ranks have one and two of three experts."""
    source = write_gguf(tmp_path / "source", "qwen3moe", kind)
    options = {"dtype": "float16", "quant": "keep", "check": False}
    whole = export_causal_lm(source, tmp_path / "whole", **options)
    parts = export_causal_lm(source, tmp_path / "parts", expert_parallel=2, **options)
    assert parts.integers == whole.integers
    expected = _generated(tmp_path / "whole", 1, tmp_path)
    assert _generated(tmp_path / "parts", 2, tmp_path) == expected


def test_a_rank_has_its_experts_only(tmp_path):
    """Three ranks have one, one and two of four experts; through the command."""
    tiny_model("mixtral", num_hidden_layers=1).save_pretrained(tmp_path / "model")
    command = ["export", tmp_path / "model", tmp_path, "--expert-parallel", 3]
    assert cli.main(list(map(str, command))) == 0
    held = []
    for rank in range(3):
        place = tmp_path / f"rank_{rank}"
        written = json.loads((place / "export_report.json").read_text())
        assert (written["expert_parallel"], written["rank"]) == (3, rank)
        assert (written["tensor_parallel"], written["group"]) == (1, "expert_parallel")
        graph = onnx.load(place / "model.onnx", load_external_data=False).graph
        stacked = [tensor.dims[0] for tensor in graph.initializer if len(tensor.dims) == 3]
        assert len(stacked) == 2 and len(set(stacked)) == 1
        held += stacked[:1]
    assert sorted(held) == [1, 1, 2]


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [
        ("mixtral", {"expert_parallel": 0}, ArgumentError, "parallel expected a whole number"),
        ("mixtral", {"expert_parallel": 5}, ArgumentError, "at most the model's 4 experts, got 5"),
        ("mixtral", {"expert_parallel": 2, "tensor_parallel": 4}, ArgumentError,
         "expected expert_parallel to be 1 or tensor_parallel's 4: the ranks are the same, got 2"),
        ("llama", {"expert_parallel": 2}, ExportError, "got one without: pass expert_parallel=1"),
    ],
)  # fmt: skip
def test_refusals(tmp_path, kind, arguments, error, message):
    with pytest.raises(error, match=message):
        export_causal_lm(tiny_model(kind), tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()

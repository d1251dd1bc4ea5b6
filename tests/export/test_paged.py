"""Exports with a paged cache: sequences in blocks, in any mixture of prefill and decode."""

from __future__ import annotations

import itertools
import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnxruntime_npu.errors import ArgumentError
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.exporter.caches.paged import BLOCK_SIZE

from .conftest import expected_logits, tiny_model
from .genai_runs import engine_tokens, generator_tokens, open_in_genai
from .test_causal_lm import PROVIDERS, TOLERANCE, forced_logits

IN_HOST_MEMORY = (PROVIDERS[0], {"host_memory": "1"})
RANDOM = np.random.default_rng(2)
# One within a block, one that decoding takes into the next, one of several blocks.
PROMPTS = [RANDOM.integers(0, 97, n).tolist() for n in (5, BLOCK_SIZE - 2, 3 * BLOCK_SIZE + 1)]
CONTINUATIONS = [RANDOM.integers(0, 97, 6).tolist() for _ in PROMPTS]


@pytest.mark.parametrize("kind", ["llama", "mistral", "mixtral", "qwen3"])
def test_ragged_prefill_and_decode_match_transformers(exported, kind):
    model, directory, report = exported(kind, cache="paged")
    assert report.gaps == [] and report.cache == "paged"
    assert report.replaced["npu_scatter_nd_update"]["emitted"] == 4
    for provider in (*PROVIDERS, IN_HOST_MEMORY):
        actual = forced_logits(directory, provider, PROMPTS, CONTINUATIONS)
        for row, (prompt, continuation) in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True)):
            expected = expected_logits(model, prompt, continuation)
            np.testing.assert_allclose(actual[row], expected, rtol=0, atol=TOLERANCE)


def test_bfloat16_matches_transformers_as_closely_as_the_growing_cache(exported):
    model, paged, _ = exported("llama", cache="paged", dtype="bfloat16")
    _, growing, _ = exported("llama", cache="dynamic", dtype="bfloat16")
    errors = {}
    for directory in (paged, growing):
        actual = forced_logits(directory, PROVIDERS[0], PROMPTS, CONTINUATIONS)
        differences = [
            actual[row] - expected_logits(model, *pair)
            for row, pair in enumerate(zip(PROMPTS, CONTINUATIONS, strict=True))
        ]
        errors[directory] = np.sqrt(np.mean(np.square(differences)))
    # The same operations on the same values, in another layout.
    assert errors[paged] <= 1.1 * errors[growing]


def test_heads_stay_behind_tokens(exported):
    _, directory, _ = exported("llama", cache="paged")
    nodes = onnx.load(directory / "model.onnx", load_external_data=False).graph.node
    # Of the rotary tables; no layer has one.
    assert sum(node.op_type == "Transpose" for node in nodes) == 2


def step_inputs(session, *, blocks=4, **changes):
    """Two sequences: 3 new tokens of one, 1 new token after 33 of another; states of 0.5, too."""
    inputs = {
        "input_ids": np.array([3, 14, 15, 92], np.int64),
        "cumulative_sequence_lengths": np.array([0, 3, 4], np.int32),
        "past_sequence_lengths": np.array([0, BLOCK_SIZE + 1], np.int32),
        "block_table": np.array([[2, 7], [3, 0]], np.int32),
        "logits_indices": np.array([2, 3], np.int32),
        **changes,
    }
    rows = {"blocks": blocks, "sequences": 2}
    caches = {
        each.name: np.full((rows[each.shape[0]], *each.shape[1:]), 0.5, np.float32)
        for each in session.get_inputs()
        if each.name.startswith("past_key_values")
    }
    return {**inputs, **caches}


@pytest.fixture(scope="module", params=[*PROVIDERS, IN_HOST_MEMORY], ids=["npu", "cpu", "host"])
def session(exported, request):
    _, directory, _ = exported("llama", cache="paged")
    return ort.InferenceSession(directory / "model.onnx", providers=[request.param])


def test_a_step_writes_its_own_slots_only(session):
    inputs = step_inputs(session)
    logits, *caches = session.run(None, inputs)
    assert logits.shape == (2, 97)
    for name, value in inputs.items():
        assert not name.startswith("past_key_values") or (value == 0.5).all()
    for cache in caches:
        written = (cache != 0.5).any(axis=(2, 3))
        expected = np.zeros((4, BLOCK_SIZE), bool)
        expected[2, :3] = True
        expected[0, 1] = True  # token 33 of the second sequence lies in its second block
        np.testing.assert_array_equal(written, expected)


def test_caches_bound_as_inputs_and_outputs_are_updated_in_place(exported):
    _, directory, _ = exported("llama", cache="paged")
    session = ort.InferenceSession(directory / "model.onnx", providers=[IN_HOST_MEMORY])
    inputs = step_inputs(session)
    expected = session.run(None, inputs)
    binding = session.io_binding()
    for name, value in inputs.items():
        bound = ort.OrtValue.ortvalue_from_numpy(value)
        assert bound.data_ptr() == value.ctypes.data
        binding.bind_ortvalue_input(name, bound)
        if name.startswith("past_key_values"):
            binding.bind_ortvalue_output(name.replace("past_key_values", "present"), bound)
    binding.bind_output("logits", "cpu")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[-1].numpy(), expected[0])
    for output, updated in zip(session.get_outputs()[1:], expected[1:], strict=True):
        content = inputs[output.name.replace("present", "past_key_values")]
        np.testing.assert_array_equal(content, updated)


@pytest.mark.parametrize("provider", [PROVIDERS[0], IN_HOST_MEMORY], ids=["npu", "host"])
@pytest.mark.parametrize(
    "changes",
    [
        {"block_table": np.array([[4, 7], [3, 0]], np.int32)},
        {"block_table": np.array([[2, 7], [3, -5]], np.int32)},
        {"past_sequence_lengths": np.array([0, 2 * BLOCK_SIZE], np.int32)},
        {"cumulative_sequence_lengths": np.array([0, 3, 3], np.int32)},
        {"cumulative_sequence_lengths": np.array([0, 3, 9], np.int32)},
        {"cumulative_sequence_lengths": np.array([0, 3, 2**31 - 1], np.int32)},
        {"cumulative_sequence_lengths": np.array([0, -5, 4], np.int32)},
        {"logits_indices": np.array([2, 4], np.int32)},
    ],
    ids=[
        "block",
        "negative_block",
        "past_the_table",
        "too_few",
        "too_many",
        "far_too_many",
        "negative",
        "scored",
    ],
)
@pytest.mark.parametrize("kind", ["llama", "falcon_h1"])  # which has states
def test_wrong_tables_are_errors_and_the_session_goes_on(exported, kind, changes, provider):
    _, directory, _ = exported(kind, cache="paged")
    session = ort.InferenceSession(directory / "model.onnx", providers=[provider])
    expected = session.run(None, step_inputs(session))[0]
    with pytest.raises(Exception, match=r"expected|must be|out of|indices"):
        session.run(None, step_inputs(session, **changes))
    np.testing.assert_array_equal(session.run(None, step_inputs(session))[0], expected)


def test_all_logits_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"expected logits='last' with cache='paged'"):
        export_causal_lm(tiny_model("llama"), tmp_path, cache="paged", logits="all")


def greedy(model, prompt, count):
    """Return transformers' tokens."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        grown = model.generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=None)
    return grown[0, len(prompt) :].tolist()


def answer(model, prompt, count):
    """Return transformers' tokens before the one that ends an answer."""
    stop = model.config.eos_token_id
    return list(itertools.takewhile(lambda token: token != stop, greedy(model, prompt, count)))


@pytest.mark.parametrize(
    ("kind", "provider"), [("mistral", PROVIDERS[0]), ("mistral", PROVIDERS[1]),
                           ("mistral", (PROVIDERS[0], {"host_memory": "0"})),
                           ("gemma3_text", PROVIDERS[0]),
                           pytest.param("llama", PROVIDERS[0], marks=pytest.mark.exhaustive)],
)  # fmt: skip
def test_engine_of_genai_serves_ragged_requests_together(genai, exported, kind, provider):
    model, directory, _ = exported(kind, cache="paged")
    settings = json.loads((directory / "genai_config.json").read_text())
    assert settings["engine"]["dynamic_batching"]["block_size"] == BLOCK_SIZE
    session_options = settings["model"]["decoder"]["session_options"]
    assert session_options["ep.npuexecutionprovider.host_memory"] == "1"
    tokens, runs = engine_tokens(open_in_genai(directory, provider), PROMPTS, 12)
    assert runs < 2 * 12  # not one after the other
    assert tokens == [answer(model, prompt, 12) for prompt in PROMPTS]
    assert sum(map(len, tokens)) >= 2 * 12


# Decodes 8 tokens; {directory}, {limit}: bytes by which the process may grow.
ENGINE_SCRIPT = """
import numpy as np, onnxruntime_genai as og, onnxruntime_npu
from onnxruntime_npu import _C

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

name = onnxruntime_npu.get_ep_name()
og.register_execution_provider_library(name, onnxruntime_npu.get_library_path())
config = og.Config({directory!r})
config.append_provider(name)
engine = og.Engine(og.Model(config))
before, calls = resident(), None
request = engine.create_request()
turn = og.TurnOptions(request)
turn.set_do_sample(False)
turn.set_max_generated_tokens(8)
turn.set_min_generated_tokens(8)
request.begin_turn(np.arange(5, dtype=np.int32), turn)
events, tokens = engine.create_event_buffer(64), 0
while engine.has_pending_requests():
    happened = engine.run(events)
    tokens += sum(bool(event.flags & og.EngineEventFlags.TOKEN) for event in happened)
    calls = calls or _C.backend_calls()
assert tokens == 8
after = _C.backend_calls()
assert after["Launch"] > calls["Launch"]
copied = [name for name in after if "Copy" in name and after[name] != calls.get(name, 0)]
assert copied == []
grown = resident() - before
assert grown < {limit}, grown
"""


def test_blocks_that_no_sequence_uses_cost_nothing(exported, tmp_path, run_python):
    """Nothing is copied, and memory of the pool that is not used is never touched."""
    _, directory, _ = exported("mistral", cache="paged")
    settings = json.loads((directory / "genai_config.json").read_text())
    decoder = settings["model"]["decoder"]
    block = 4 * 2 * BLOCK_SIZE * decoder["num_key_value_heads"] * decoder["head_size"]
    pool = 2**29  # bytes
    blocks = pool // (block * decoder["num_hidden_layers"])
    settings["engine"]["dynamic_batching"]["num_blocks"] = blocks
    for file in directory.iterdir():
        if file.name != "genai_config.json":
            (tmp_path / file.name).symlink_to(file)
    (tmp_path / "genai_config.json").write_text(json.dumps(settings))
    script = ENGINE_SCRIPT.format(directory=str(tmp_path), limit=pool // 4)
    code, output = run_python(script, ORT_NPU_FAULT_INJECTION="1")
    assert code == 0, output


@pytest.mark.parametrize(
    ("kind", "provider"), [*(("llama", each) for each in PROVIDERS),
                           ("gemma2", PROVIDERS[0])],
)  # fmt: skip
def test_generator_of_genai_runs_the_growing_cache(genai, exported, kind, provider):
    model, directory, _ = exported(kind, cache="dynamic")
    tokens = generator_tokens(open_in_genai(directory, provider), PROMPTS[1], 12)
    assert tokens == greedy(model, PROMPTS[1], 12)

"""Models whose layers keep states of a fixed size, by the engine and beside it."""

from __future__ import annotations

import shutil

import onnxruntime_genai as og
import pytest
import torch
from export.conftest import tiny_model
from onnxruntime_npu.exporter import export_causal_lm
from onnxruntime_npu.generation import paged_cache
from onnxruntime_npu.generation.row_states import RowStates
from onnxruntime_npu.serving.batch import Batch
from onnxruntime_npu.serving.engine_messages import Sampling, Submit
from onnxruntime_npu.serving.engine_process import open_model

from .conftest import CONTEXT, END, byte_tokenizer, sized
from .test_logits_lane import PROMPTS, PROVIDER, open_lane, run

ANSWER = 24


@pytest.fixture(scope="module")
def model():
    sizes = {"vocab_size": 258, "max_position_embeddings": CONTEXT}
    return tiny_model("qwen3_next", **sizes, eos_token_id=END, bos_token_id=None)


@pytest.fixture(scope="module")
def directory(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("states") / "tiny"
    export_causal_lm(model, directory, cache="paged", tokenizer=byte_tokenizer(), check=False)
    return sized(directory, num_blocks=64, max_batch_size=16)


@pytest.fixture(scope="module")
def expected(model):
    """Return transformers' answer to each prompt."""
    answers = {}
    for key, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)  # token 0 is no padding here
        with torch.no_grad():
            ids = model.generate(ids, attention_mask=mask, max_new_tokens=ANSWER, do_sample=False)
        answer = ids[0, len(prompt) :].tolist()
        answers[key] = answer[: answer.index(END)] if END in answer else answer
    return answers


def answers(lane):
    """Return the tokens of all prompts, which are added at once."""
    for key, prompt in enumerate(PROMPTS):
        lane.add(Submit(key, prompt, Sampling(ANSWER, greedy=True)))
    return {key: [] for key in range(len(PROMPTS))} | run(lane)[1]


@pytest.fixture(params=["engine", "lane"])
def opened(request, genai):
    """Return a function that opens what runs requests on a directory."""
    if request.param == "lane":
        return open_lane
    return lambda directory: Batch(og.Engine(open_model(directory, PROVIDER)), block_size=32)


def test_answers_are_those_of_transformers_also_a_second_time(opened, directory, expected):
    """The second time blocks and rows of states are used again, and prompts may be known."""
    lane = opened(directory)
    assert answers(lane) == expected
    assert answers(lane) == expected


def test_answers_are_the_same_in_a_cache_that_is_too_small(opened, directory, expected, tmp_path):
    small = sized(shutil.copytree(directory, tmp_path / "small"), num_blocks=CONTEXT // 32)
    assert answers(opened(small)) == expected


def test_a_cancelled_request_leaves_others_their_states(opened, directory, expected):
    lane = opened(directory)
    lane.add(Submit(9, PROMPTS[1], Sampling(ANSWER, greedy=True)))
    for _ in range(3):
        lane.step()
    lane.cancel(9)
    assert answers(lane) == expected


@pytest.mark.usefixtures("genai")
def test_engine_guesses_nothing_for_states(directory, expected):
    batch = Batch(og.Engine(open_model(directory, PROVIDER)), block_size=32)
    batch.add(Submit(0, PROMPTS[0], Sampling(ANSWER, greedy=True, guesses=4)))
    whole, tokens = run(batch)
    assert tokens[0] == expected[0] and whole.guessed == 0


def test_lane_forgets_the_states_of_requests_that_have_ended(directory, monkeypatch):
    opened = []
    monkeypatch.setattr(
        paged_cache, "RowStates", lambda inputs: opened.append(RowStates(inputs)) or opened[-1]
    )
    answers(open_lane(directory))
    (states,) = opened
    assert states.rows == 0

"""Answers that the model may not end before they have so many tokens: of both lanes."""

from __future__ import annotations

import pytest
from onnxruntime_npu.serving.engine_messages import Sampling, Submit

from .conftest import END
from .test_engine_batch import open_batch, run

MOST = 40
LANES = ({}, {"logprobs": 0})  # the engine, and the loop of requests that need logits


def complete(server, prompt, **options):
    body = {"prompt": prompt, "max_tokens": MOST, "temperature": 0, **options}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    answer = answer.json()
    return answer["choices"][0], answer["usage"]["completion_tokens"]


@pytest.fixture(scope="module")
def ending(server):
    """A prompt whose answer the model ends after some tokens, and how many."""
    for token in range(256):
        choice, count = complete(server, [token, token + 1])
        if choice["finish_reason"] == "stop" and 0 < count < MOST - 2:
            return [token, token + 1], count
    raise AssertionError("the model ends no answer")


@pytest.mark.parametrize("lane", LANES)
def test_the_model_ends_no_answer_before_its_least_tokens(server, ending, lane):
    prompt, count = ending
    short, _ = complete(server, prompt, **lane)
    same, least = complete(server, prompt, min_tokens=count, **lane)
    assert (same["text"], same["finish_reason"], least) == (short["text"], "stop", count)
    longer, least = complete(server, prompt, min_tokens=count + 1, **lane)
    assert least > count and longer["text"].startswith(short["text"].rstrip("\ufffd"))
    whole, most = complete(server, prompt, ignore_eos=True, **lane)
    assert (whole["finish_reason"], most) == ("length", MOST)
    assert whole["text"] == complete(server, prompt, ignore_eos=True)[0]["text"]
    stopped, _ = complete(server, prompt, ignore_eos=True, stop=short["text"][0], **lane)
    assert (stopped["text"], stopped["finish_reason"]) == ("", "stop")


@pytest.mark.usefixtures("genai")
def test_requests_that_take_turns_keep_their_least_tokens(small_cache, ending):
    prompt, _ = ending
    batch = open_batch(small_cache)
    for key in range(3):
        batch.add(Submit(key, prompt * 30, Sampling(60, greedy=True, min_tokens=60)))
    tokens, reasons, preempted = run(batch)
    assert preempted >= 1 and set(reasons.values()) == {"length"}
    assert tokens[0] == tokens[1] == tokens[2] and len(tokens[0]) == 60 and END not in tokens[0]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"min_tokens": MOST + 1}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 2, "response_format": {"type": "regex", "regex": "a"}}, "min_tokens"),
        ({"ignore_eos": True, "response_format": {"type": "json_object"}}, "ignore_eos"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
)
def test_least_tokens_that_cannot_be_are_refused(server, options, param):
    body = {"prompt": "a", "max_tokens": MOST, **options}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text

"""The lane for requests whose logits are seen or changed, in this process, beside the engine."""

from __future__ import annotations

import json
import threading

import numpy as np
import onnxruntime_genai as og
import pytest
from onnxruntime_npu.generation import CausalLM
from onnxruntime_npu.serving import logits_lane
from onnxruntime_npu.serving.batch import Batch
from onnxruntime_npu.serving.engine_messages import Guidance, Sampling, Step, Submit
from onnxruntime_npu.serving.engine_process import open_model
from onnxruntime_npu.serving.logits_lane import LogitsLane
from onnxruntime_npu.serving.logits_model import open_logits_model

from .conftest import ALTERNATIVES, CONTEXT, END

PROVIDER = "NPUExecutionProvider"
RANDOM = np.random.default_rng(9)
PROMPTS = [RANDOM.integers(0, 256, int(n)).tolist() for n in (5, 70, 1, 33, 32, 64)]


def settings_of(directory):
    return json.loads((directory / "genai_config.json").read_text())


def open_lane(directory, provider=PROVIDER):
    """Return a lane whose model is open."""
    opened = threading.Event()
    lane = LogitsLane(
        lambda: open_logits_model(directory, settings_of(directory), provider, 0), opened.set
    )
    lane.add(Submit(-1, [0], Sampling(1, greedy=True)))
    assert opened.wait(300)
    run(lane)
    return lane


@pytest.fixture(scope="module")
def lane(served_directory):
    return open_lane(served_directory)


def run(lane, on_step=lambda step: None):
    """Run to the end; returns all that happened, and the tokens of each request."""
    whole, tokens = Step(), {}
    while lane.busy:
        step = lane.step()
        on_step(step)
        whole = Step.together([whole, step])
        for key, token, _ in step.tokens:
            tokens.setdefault(key, []).append(token)
    return whole, tokens


def answer(lane, row, sampling):
    """Return the tokens of one request and how it ended."""
    lane.add(Submit(0, row, sampling))
    whole, tokens = run(lane)
    ((_, reason, message),) = whole.finished
    return tokens.get(0, []), reason, message


@pytest.mark.usefixtures("genai")
def test_greedy_tokens_are_those_of_the_engine_and_the_library(served_directory, lane):
    model = CausalLM(served_directory)
    batch = Batch(og.Engine(open_model(served_directory, PROVIDER)), block_size=32)
    for each in (lane, batch):
        for key, row in enumerate(PROMPTS):
            each.add(Submit(key, row, Sampling(24, greedy=True)))
    expected = {
        key: model.generate_tokens([row], max_new_tokens=24).tokens[0]
        for key, row in enumerate(PROMPTS)
    }
    (mine, tokens), (engine, engine_tokens) = run(lane), run(batch)
    assert tokens == engine_tokens == expected
    assert sorted(mine.finished) == sorted(engine.finished)
    assert sorted(mine.started) == sorted(engine.started)


def test_the_same_on_the_cpu(served_directory, lane):
    on_cpu = open_lane(served_directory, "CPUExecutionProvider")
    sampling = Sampling(12, greedy=True, presence_penalty=0.5)
    assert answer(on_cpu, PROMPTS[1], sampling) == answer(lane, PROMPTS[1], sampling)


def test_long_prompts_are_read_in_parts_between_others_tokens(lane, monkeypatch):
    scored = Sampling(4, greedy=True, scores=2, prompt_scores=True)

    def together():
        for key, row in enumerate(PROMPTS):
            lane.add(Submit(key, row, scored))
        return run(lane)

    at_once, tokens = together()
    monkeypatch.setattr(logits_lane, "_MOST_TOKENS", 24)
    in_parts, same = together()
    assert same == tokens
    first = [key for key, _, _ in in_parts.tokens]
    assert first.index(0) < first.index(1)  # of 5 tokens, and of 70
    scores = dict(at_once.prompts)
    for key, found in in_parts.prompts:
        assert [each.text for each in found] == [each.text for each in scores[key]]
        assert len(found) == len(PROMPTS[key])
        close = [each.logprob for each in scores[key][1:]]
        # The same float32 sums, perhaps in another order.
        assert [each.logprob for each in found[1:]] == pytest.approx(close, rel=1e-4, abs=1e-4)
        assert found[0].logprob is None


def test_requests_wait_for_blocks_in_their_order_and_give_them_back(small_cache):
    lane = open_lane(small_cache)  # of one context: three requests of 120 tokens do not fit
    started = []

    def watch(step):
        started.append((list(step.started), [key for key, *_ in step.finished]))
        assert 0 <= step.blocks_used <= CONTEXT // 32

    for key in range(3):
        lane.add(Submit(key, PROMPTS[1], Sampling(50, greedy=True, scores=0)))
    lane.add(Submit(3, [5], Sampling(3, greedy=True)))
    whole, tokens = run(lane, watch)
    assert [key for keys, _ in started for key in keys] == [0, 1, 2, 3]
    begins = {key: at for at, (keys, _) in enumerate(started) for key in keys}
    ends = {key: at for at, (_, keys) in enumerate(started) for key in keys}
    assert begins[0] == begins[1] < min(ends.values()) < begins[2]
    assert tokens[0] == tokens[1] == tokens[2] and whole.blocks_used > 0
    assert lane.step().blocks_used == 0
    # All of it is free again, for the longest request that the engine takes: all blocks, and a
    # last token that is not cached.
    full = Sampling(CONTEXT, greedy=True, logit_bias={END: -100.0})
    tokens, reason, _ = answer(lane, [5], full)
    assert (len(tokens), reason) == (CONTEXT, "length")


def test_cancelled_requests_are_forgotten_whether_they_run_or_wait(small_cache):
    lane = open_lane(small_cache)
    for key in range(3):
        lane.add(Submit(key, PROMPTS[1], Sampling(50, greedy=True, scores=0)))
    assert lane.step().started == [0, 1]
    for key in (0, 2, 7):
        lane.cancel(key)
    whole, tokens = run(lane)
    assert set(tokens) == {1} and [key for key, *_ in whole.finished] == [1]


def test_a_model_that_cannot_be_opened_ends_what_waits_and_is_tried_again(served_directory):
    opened, ways = threading.Semaphore(0), [MemoryError("no room"), None]

    def open_model():
        if (error := ways.pop(0)) is not None:
            raise error
        return open_logits_model(served_directory, settings_of(served_directory), PROVIDER, 0)

    lane = LogitsLane(open_model, opened.release)
    lane.add(Submit(1, [5], Sampling(3, greedy=True)))
    assert opened.acquire(timeout=300)
    whole, _ = run(lane)
    ((key, reason, message),) = whole.finished
    assert (key, reason) == (1, "error") and "no room" in message
    lane.add(Submit(2, [5], Sampling(3, greedy=True)))
    assert opened.acquire(timeout=300)
    whole, tokens = run(lane)
    assert len(tokens[2]) == 3 and whole.blocks_added == 64


@pytest.mark.parametrize("temperature", [1e-37, 1.0])
def test_seeds_repeat_answers_and_narrow_options_leave_the_most_likely(lane, temperature):
    row = PROMPTS[3]
    greedy = answer(lane, row, Sampling(12, greedy=True))[0]
    narrow = {"top_k": {"top_k": 1}, "top_p": {"top_p": 1e-6}, "min_p": {"min_p": 1.0}}
    for options in narrow.values():
        sampled = Sampling(12, temperature=temperature, seed=2**64 - 1, **options)
        assert answer(lane, row, sampled)[0] == greedy
    first, again, other = (
        answer(lane, row, Sampling(12, temperature=1.5, seed=seed, min_p=1e-6))[0]
        for seed in (7, 7, 8)
    )
    assert first == again != other


def test_grammars_are_the_engines(lane):
    letters = Guidance("regex", "[a-z]{5}", "response_format")
    for sampling in (
        Sampling(20, greedy=True, guidance=letters, scores=1),
        Sampling(20, seed=3, guidance=letters, logit_bias={65: 5.0}),
    ):
        tokens, reason, _ = answer(lane, PROMPTS[0], sampling)
        assert reason == "stop" and len(tokens) == 5
        assert all(ord("a") - 33 <= token <= ord("z") - 33 for token in tokens)
    wrong = Sampling(20, guidance=Guidance("regex", "(", "response_format"), scores=1)
    tokens, reason, message = answer(lane, PROMPTS[0], wrong)
    assert (tokens, reason) == ([], "refused") and "regex" in message
    later = Guidance("lark_grammar", f"start: /b{{3}}/ rest\n{ALTERNATIVES}", "response_format")
    tokens, reason, message = answer(lane, PROMPTS[0], Sampling(20, guidance=later, scores=1))
    assert reason == "refused" and "Current row has" in message and "Tokens:" not in message
    # -inf for all tokens but one is no reason to leave it.
    only = Guidance("lark_grammar", "start: <[5]>", "response_format")
    forced = Sampling(20, seed=1, guidance=only, logit_bias={5: -100.0, 6: 100.0})
    assert answer(lane, PROMPTS[0], forced)[:2] == ([5], "stop")


def test_a_bias_can_end_an_answer_at_once_or_keep_it_from_ending(lane):
    ended = Sampling(20, greedy=True, logit_bias={END: 100.0})
    assert answer(lane, PROMPTS[0], ended)[:2] == ([], "stop")
    endless = Sampling(CONTEXT - 5, greedy=True, logit_bias={END: -100.0})
    tokens, reason, _ = answer(lane, PROMPTS[0], endless)
    assert (len(tokens), reason) == (CONTEXT - 5, "length")


def test_which_requests_need_logits():
    engine = [
        Sampling(1), Sampling(1, greedy=True, min_p=0.5), Sampling(1, repetition_penalty=2),
        Sampling(1, guidance=Guidance("regex", "a", "response_format")),
    ]  # fmt: skip
    lane = [
        Sampling(1, min_p=0.5), Sampling(1, presence_penalty=-1), Sampling(1, scores=0),
        Sampling(1, frequency_penalty=0.1), Sampling(1, logit_bias={1: 0.5}),
    ]  # fmt: skip
    assert [each.needs_logits for each in engine] == [False] * len(engine)
    assert [each.needs_logits for each in lane] == [True] * len(lane)

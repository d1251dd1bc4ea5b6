"""A server process and OpenAI's client, as it is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from onnxruntime_npu.generation import CausalLM

RANDOM = np.random.default_rng(5)
# Of one block, at the border of two, of several.
PROMPTS = [RANDOM.integers(0, 256, int(n)).tolist() for n in RANDOM.integers(1, 80, 16)]
COUNT = 24
USER = [{"role": "user", "content": "What is this?"}]


@pytest.fixture(scope="module")
def expected(served_directory):
    """The text that the library generates after each prompt, alone, and its number of tokens."""
    model = CausalLM(served_directory)
    rows = [model.generate_tokens([row], max_new_tokens=COUNT).tokens[0] for row in PROMPTS]
    return [(model.tokenizer.decode(row, skip_special_tokens=True), len(row)) for row in rows]


def complete(server, prompt, **options):
    options = {"max_tokens": COUNT, "temperature": 0, **options}
    return server.client.completions.create(model="tiny", prompt=prompt, **options)


def streamed(server, prompt, **options):
    return "".join(
        event.choices[0].text for event in complete(server, prompt, stream=True, **options)
    )


def test_models_are_listed(server):
    model, encoder = server.client.models.list().data
    assert model.id == "tiny" and model.object == "model" and model.max_model_len == 256
    assert encoder.id == "tiny-encoder" and encoder.max_model_len == 128
    assert server.client.models.retrieve("tiny").id == "tiny"


def test_requests_together_are_equal_to_one_by_one_and_to_the_library(server, expected):
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        together = list(threads.map(lambda prompt: complete(server, prompt), PROMPTS))
        streams = list(threads.map(lambda prompt: streamed(server, prompt), PROMPTS))
    one_by_one = [complete(server, prompt) for prompt in PROMPTS[:4]]
    assert [answer.choices[0].text for answer in together] == [text for text, _ in expected]
    assert streams == [text for text, _ in expected]
    assert [answer.choices[0].text for answer in one_by_one] == [text for text, _ in expected[:4]]
    for answer, prompt, (_, tokens) in zip(together, PROMPTS, expected, strict=True):
        assert answer.usage.prompt_tokens == len(prompt)
        assert answer.usage.completion_tokens == tokens
        assert answer.choices[0].finish_reason == ("length" if tokens == COUNT else "stop")


def test_text_and_its_tokens_are_the_same_prompt(server, served_directory):
    tokens = server.http.post("/tokenize", json={"prompt": "Grüße, 世界"}).json()
    assert tokens["count"] == len("Grüße, 世界".encode()) == len(tokens["tokens"])
    by_text = complete(server, "Grüße, 世界").choices[0].text
    assert by_text == complete(server, tokens["tokens"]).choices[0].text


def test_chat_goes_through_the_template(server):
    answer = server.client.chat.completions.create(
        model="tiny", messages=USER, max_completion_tokens=COUNT, temperature=0
    )
    templated = "<start>user\nWhat is this?<end><start>assistant\n"
    tokens = server.http.post("/tokenize", json={"messages": USER}).json()["tokens"]
    assert tokens == server.http.post("/tokenize", json={"prompt": templated}).json()["tokens"]
    assert answer.usage.prompt_tokens == len(tokens)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == complete(server, tokens).choices[0].text


def test_a_streamed_chat_is_the_whole_one_in_pieces(server):
    options = {"model": "tiny", "messages": USER, "max_tokens": COUNT, "temperature": 0}
    whole = server.client.chat.completions.create(**options)
    events = list(
        server.client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
    )
    first, *parts, last, usage = events
    assert first.choices[0].delta.role == "assistant"
    assert [part.choices[0].finish_reason for part in parts] == [None] * len(parts)
    assert all(part.choices[0].delta.content for part in parts) and len(parts) > 1
    text = "".join(part.choices[0].delta.content for part in parts)
    assert text == whole.choices[0].message.content
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert usage.choices == [] and usage.usage == whole.usage
    assert len({event.id for event in events}) == 1


def test_stop_strings_end_an_answer_wherever_tokens_are_cut(server, expected):
    # Each character takes a token or more, so that these lie across tokens.
    row, text = next((i, text) for i, (text, _) in enumerate(expected) if len(text) > 12)
    stop = text[6:9]
    end = text.find(stop)
    answer = complete(server, PROMPTS[row], stop=["\N{SNOWMAN}", stop])
    assert answer.choices[0].text == text[:end]
    assert answer.choices[0].finish_reason == "stop"
    assert streamed(server, PROMPTS[row], stop=stop) == text[:end]
    server.wait_for("npu_requests_running", 0)


def test_seeds_repeat_answers(server):
    def sampled(seed, **options):
        return complete(server, PROMPTS[0], temperature=1.5, seed=seed, **options)

    first, again, other = (sampled(seed).choices[0].text for seed in (7, 7, 8))
    assert first == again != other
    several = sampled(7, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.choices[0].text == first and several.choices[1].text == other
    assert several.usage.completion_tokens == 3 * COUNT
    assert sampled(-7).choices[0].text == sampled(-7).choices[0].text


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1e-50},
        {"temperature": 1e-50, "top_p": 0.5},
        {"top_p": 0},
        {"top_p": 1e-50},
        {"extra_body": {"top_k": 1}},
        {"temperature": 0.5, "top_p": 0.5, "extra_body": {"top_k": 1}},
    ],
    ids=str,
)
def test_the_most_likely_token_is_asked_for_in_many_ways(server, expected, options):
    answer = complete(server, PROMPTS[1], **{"temperature": 1, **options})
    assert answer.choices[0].text == expected[1][0]


def test_top_k_beyond_the_vocabulary_is_all_of_it(server):
    def sampled(top_k):
        return complete(server, "a", temperature=1, seed=3, extra_body={"top_k": top_k})

    assert sampled(100_000).choices[0].text == sampled(0).choices[0].text


def test_several_prompts_have_their_answers_in_order(server, expected):
    answer = complete(server, PROMPTS[:3], n=2)
    texts = [choice.text for choice in answer.choices]
    assert texts == [expected[i // 2][0] for i in range(6)]
    assert answer.usage.prompt_tokens == sum(len(prompt) for prompt in PROMPTS[:3])


def test_metrics_count_what_happened(server):
    names = ["npu_prompt_tokens_total", "npu_generated_tokens_total"]
    names += ["npu_time_to_first_token_seconds_count", "npu_inter_token_seconds_count"]
    before = [server.metric(name) for name in names]
    answer = complete(server, PROMPTS[2], max_tokens=5)
    server.wait_for("npu_requests_running", 0)
    grown = [server.metric(name) - value for name, value in zip(names, before, strict=True)]
    assert grown == [len(PROMPTS[2]), 5, 1, 4] and answer.usage.completion_tokens == 5
    complete(server, PROMPTS[2], max_tokens=1, logprobs=0)  # opens the lane, which has as many
    server.wait_for("npu_cache_blocks", 128)
    assert server.metric("npu_requests_queued") == 0


def test_a_client_that_goes_away_frees_the_cache(server):
    def begin() -> tuple[contextlib.ExitStack, Iterator[str]]:
        body = {"prompt": PROMPTS[0], "max_tokens": 150, "stream": True, "temperature": 0}
        with contextlib.ExitStack() as opened:
            answer = opened.enter_context(server.http.stream("POST", "/v1/completions", json=body))
            lines = answer.iter_lines()  # closes the connection when it is deleted
            assert json.loads(next(lines).removeprefix("data: "))["choices"]
            return opened.pop_all(), lines

    with server.engine_standing_still(after=begin) as (opened, _lines):
        cancelled = server.metric("npu_requests_cancelled_total")
        opened.close()
        server.wait_for("npu_requests_cancelled_total", cancelled + 1)
        with pytest.raises(openai.APITimeoutError):  # of an answer that is not streamed
            server.client.with_options(timeout=0.5).completions.create(
                model="tiny", prompt=PROMPTS[0], max_tokens=150
            )
        server.wait_for("npu_requests_cancelled_total", cancelled + 2)
        assert server.metric("npu_requests_running") == server.metric("npu_requests_queued") == 0
        assert server.metric("npu_cache_blocks_used") > 0  # as the engine has said last
    server.wait_for("npu_cache_blocks_used", 0)


def test_identifiers_of_requests(server):
    headers = {"x-request-id": "my-own.1"}
    answer = server.http.post("/v1/completions", headers=headers, json={"prompt": "a"})
    assert answer.headers["x-request-id"] == "my-own.1"
    assert answer.json()["id"] == "cmpl-my-own.1"
    others = [server.http.get("/health", headers={"x-request-id": "a b/c"}) for _ in range(2)]
    assert len({other.headers["x-request-id"] for other in others}) == 2

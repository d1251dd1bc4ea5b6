"""Guesses of tokens: what is guessed when, and what clients see of it."""

from __future__ import annotations

from onnxruntime_npu.serving.guesses import Guesses

from .conftest import byte_tokenizer


def test_what_followed_the_last_tokens_is_guessed():
    guesses = Guesses([1, 2, 3, 4, 5, 1, 2], 3)
    assert guesses.next(8) == [3, 4, 5]
    assert [guesses.append(token) for token in (3, 4, 9)] == [True, True, False]
    assert guesses.next(8) == []  # 9 was never there
    guesses.append(1)
    assert guesses.next(2) == [2, 3] and guesses.next(0) == []


def test_wrong_guesses_are_made_less_and_less_often():
    guesses = Guesses([7, 1, 7, 2], 2)
    made = []
    for step in range(40):
        if guesses.next(2):
            made.append(step)
        guesses.append(100 + step if step % 2 else 7)  # after each 7 comes what never came before
    assert made == [1, 3, 7, 15, 31]


def test_answers_are_those_of_a_server_that_does_not_guess(serve, server):
    guessing = serve("--prompt-lookup-num-tokens", "5").wait_until_ready()
    body = {"prompt": "over and over and over and", "max_tokens": 80, "temperature": 0}

    def texts(of):
        answer = of.http.post("/v1/completions", json={**body, "n": 2}).json()
        return [choice["text"] for choice in answer["choices"]], answer["usage"]

    assert texts(guessing) == texts(server)
    assert guessing.metric("npu_guessed_tokens_total") >= 1
    assert guessing.metric("npu_accepted_tokens_total") >= 1
    assert server.metric("npu_guessed_tokens_total") == 0


def test_tokens_of_kept_beginnings_are_counted(server):
    series = "npu_prompt_tokens_cached_total"
    body = {"prompt": "begins the same way every time " * 3, "max_tokens": 1, "temperature": 0}
    server.http.post("/v1/completions", json=body)
    before = server.metric(series)
    server.http.post("/v1/completions", json=body)
    assert server.metric(series) - before == 64  # whole blocks


def test_usage_tells_the_tokens_that_were_cached(server):
    def cached(count=1, **options):
        prompts = [f"{i} is how each of them begins, at every time" for i in range(count)]
        body = {"prompt": prompts, "max_tokens": 4, "temperature": 0, **options}
        usage = server.http.post("/v1/completions", json=body).json()["usage"]
        return usage.get("prompt_tokens_details", {}).get("cached_tokens")

    assert cached() == 0
    assert cached() == 32  # a whole block
    assert cached(2) == 32  # of both prompts together
    assert cached(2, n=2, temperature=1, top_k=5) == 64  # each prompt counts once, as its tokens
    assert cached(logprobs=1) == 0  # by the other lane, which keeps none
    # The engine tells at its end of an answer, which a stop string comes before.
    (token,) = byte_tokenizer().encode("a")
    assert cached(stop="a", logit_bias={token: 100}, max_tokens=150) is None
    stream = server.client.completions.create(
        model="tiny",
        prompt="0 is how each of them begins, at every time",
        max_tokens=4,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    *_, last = stream
    assert last.usage.prompt_tokens_details.cached_tokens == 32

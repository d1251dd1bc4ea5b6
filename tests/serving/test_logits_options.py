"""Log-probabilities, penalties, bias and min-p of a server, compared with transformers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from onnxruntime_npu.serving.engine_messages import Score, Scored
from onnxruntime_npu.serving.logprobs import TokenLog, completion_logprobs

from .conftest import CONTEXT, END, reference_model

RANDOM = np.random.default_rng(17)
PROMPT = RANDOM.integers(0, 256, 40).tolist()
COUNT = 24
USER = [{"role": "user", "content": "What is this?"}]
# Sums of float32 in another order: logits of this model reach 40, their rounding 1e-5 of that.
CLOSE = {"rel": 1e-4, "abs": 1e-3}


@pytest.fixture(scope="module")
def reference():
    """Log-softmax of the logits after each token, float64 [S, V], by transformers."""
    model = reference_model()

    def logprobs(tokens: list[int]) -> np.ndarray:
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0]
        return torch.log_softmax(logits.double(), -1).numpy()

    return logprobs


def complete(server, prompt=PROMPT, **options):
    return server.client.completions.create(
        **{"model": "tiny", "prompt": prompt, "max_tokens": COUNT, "temperature": 0, **options}
    )


def chat(server, **options):
    return server.client.chat.completions.create(
        **{"model": "tiny", "messages": USER, "max_tokens": COUNT, "temperature": 0, **options}
    )


@pytest.fixture(scope="module")
def names(served_directory):
    """What a token is called in an answer, by its number: a byte, or its text."""
    alphabet = json.loads((served_directory / "tokenizer.json").read_text())["model"]["vocab"]
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    of = {chr(byte): byte for byte in visible}
    of.update({chr(256 + i): byte for i, byte in enumerate(hidden)})
    found = {}
    for letter, token in alphabet.items():
        byte = of[letter]
        found[token] = chr(byte) if byte < 128 else f"bytes:\\x{byte:02x}"
    return {**found, 256: "<start>", 257: "<end>"}


def number(names, name):
    (token,) = [token for token, each in names.items() if each == name]
    return token


def test_completions_score_the_prompt_and_the_answer_as_transformers(server, names, reference):
    text = "Grüße, 世界: what is this?"
    prompt = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    plain = complete(server, text)
    answer = complete(server, text, logprobs=3, echo=True)
    (choice,) = answer.choices
    assert choice.text == text + plain.choices[0].text and answer.usage == plain.usage
    found = choice.logprobs
    tokens = [number(names, name) for name in found.tokens]
    assert tokens[: len(prompt)] == prompt
    assert len(tokens) == len(prompt) + answer.usage.completion_tokens
    expected = reference(tokens)
    assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
    for at in range(1, len(tokens)):
        row = expected[at - 1]
        assert found.token_logprobs[at] == pytest.approx(row[tokens[at]], **CLOSE)
        best = np.argsort(-row)[:3]
        named = {names[int(each)]: row[each] for each in {*best.tolist(), tokens[at]}}
        assert found.top_logprobs[at] == pytest.approx(named, **CLOSE)
    # Each token's text begins where it says.
    offsets = [at for at, letter in enumerate(text) for _ in letter.encode()]
    assert found.text_offset[: len(prompt) + 1] == [*offsets, len(text)]
    assert found.text_offset == sorted(found.text_offset)


def test_a_completion_without_its_prompt_scores_the_answer_alone(server, names, reference):
    (choice,) = complete(server, logprobs=0).choices
    tokens = [number(names, name) for name in choice.logprobs.tokens]
    expected = reference([*PROMPT, *tokens])[len(PROMPT) - 1 :]
    values = [row[token] for row, token in zip(expected, tokens, strict=False)]
    assert choice.logprobs.token_logprobs == pytest.approx(values, **CLOSE)
    of_each = zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True)
    assert choice.logprobs.top_logprobs == [{name: value} for name, value in of_each]


def test_chats_have_the_bytes_of_tokens_and_the_most_likely_ones(server, names, reference):
    plain = chat(server)
    answer = chat(server, logprobs=True, top_logprobs=5)
    (choice,) = answer.choices
    assert choice.message.content == plain.choices[0].message.content
    content = choice.logprobs.content
    assert len(content) == answer.usage.completion_tokens == plain.usage.completion_tokens
    prompt = server.http.post("/tokenize", json={"messages": USER}).json()["tokens"]
    tokens = [number(names, each.token) for each in content]
    expected = reference([*prompt, *tokens])[len(prompt) - 1 :]
    text = b"".join(bytes(each.bytes) for each in content)
    assert text.decode(errors="replace") == choice.message.content
    for each, token, row in zip(content, tokens, expected, strict=False):
        assert each.logprob == pytest.approx(row[token], **CLOSE)
        values = [top.logprob for top in each.top_logprobs]
        assert values == pytest.approx(np.sort(row)[::-1][:5].tolist(), **CLOSE)
        assert each.top_logprobs[0].token == each.token  # a greedy choice
    (bare,) = chat(server, logprobs=True).choices
    assert [each.top_logprobs for each in bare.logprobs.content] == [[]] * len(content)
    assert plain.choices[0].logprobs is None


@pytest.mark.parametrize("options", [{}, {"n": 3, "temperature": 1.3, "seed": 5}], ids=str)
def test_a_stream_has_the_scores_of_the_whole(server, options):
    options = {"logprobs": True, "top_logprobs": 2, **options}
    whole = chat(server, **options)
    events = list(chat(server, stream=True, stream_options={"include_usage": True}, **options))
    assert events[-1].usage == whole.usage
    for choice in whole.choices:
        text, content = "", []
        for event in events:
            for part in event.choices:
                if part.index == choice.index:
                    text += part.delta.content or ""
                    content += part.logprobs.content if part.logprobs else []
        assert text == choice.message.content
        expected = [*choice.logprobs.content]
        assert [each.token for each in content] == [each.token for each in expected]
        for each, same in zip(content, expected, strict=True):
            # Equal but for the rounding of batches of other sizes.
            assert each.logprob == pytest.approx(same.logprob, **CLOSE)
            assert [top.bytes for top in each.top_logprobs] == [
                top.bytes for top in same.top_logprobs
            ]
    seeds = {choice.message.content for choice in whole.choices}
    assert len(seeds) == len(whole.choices)


def test_a_streamed_completion_has_the_scores_of_the_whole(server):
    options = {"logprobs": 1, "echo": True, "n": 2}
    whole = complete(server, **options)
    parts = [[], []]
    for event in complete(server, stream=True, **options):
        for choice in event.choices:
            parts[choice.index].append(choice)
    for choice, pieces in zip(whole.choices, parts, strict=True):
        assert "".join(piece.text for piece in pieces) == choice.text

        def joined(name, pieces=pieces):
            return [each for p in pieces if p.logprobs for each in getattr(p.logprobs, name)]

        found = choice.logprobs
        assert joined("tokens") == found.tokens and joined("text_offset") == found.text_offset
        assert joined("token_logprobs")[1:] == pytest.approx(found.token_logprobs[1:], **CLOSE)
        for named, same in zip(joined("top_logprobs")[1:], found.top_logprobs[1:], strict=True):
            assert named == pytest.approx(same, **CLOSE)


def test_scores_end_at_a_stop_string_and_with_the_text_they_are_of(server):
    letters = {"response_format": {"type": "regex", "regex": "[a-f]{20}"}}
    (whole,) = complete(server, logprobs=0, extra_body=letters).choices
    text = whole.text
    assert whole.logprobs.tokens == list(text) and whole.logprobs.text_offset == list(range(20))
    stop = text[11:14]
    end = text.find(stop)
    (cut,) = complete(server, logprobs=0, stop=stop, extra_body=letters).choices
    assert cut.text == text[:end] and cut.finish_reason == "stop"
    assert cut.logprobs.tokens == list(text[:end])
    events = complete(server, logprobs=0, stop=text[11:], stream=True, extra_body=letters)
    for event in events:
        for choice in event.choices:
            found = choice.logprobs.tokens if choice.logprobs else []
            assert found == list(choice.text)


def greedy_by_formula(logits_of, change):
    """Return what transformers' logits, changed by OpenAI's formula, make greedily."""
    made = []
    while len(made) < COUNT:
        row = change(logits_of([*PROMPT, *made])[-1].copy(), made)
        token = int(row.argmax())
        if token == END:
            break
        made.append(token)
    return made


def penalised(row, made, presence, frequency):
    for token in set(made):
        row[token] -= presence + frequency * made.count(token)
    return row


CHANGES = {
    "presence": (
        {"presence_penalty": 2}, lambda row, made: penalised(row, made, 2.0, 0.0)
    ),
    "frequency": (
        {"frequency_penalty": 1.5}, lambda row, made: penalised(row, made, 0.0, 1.5)
    ),
    "both, negative": (
        {"presence_penalty": -0.5, "frequency_penalty": -2},
        lambda row, made: penalised(row, made, -0.5, -2.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_penalties_follow_openais_formula(server, names, reference, change):
    options, formula = CHANGES[change]
    (choice,) = complete(server, logprobs=0, **options).choices
    expected = greedy_by_formula(reference, formula)
    assert [number(names, name) for name in choice.logprobs.tokens] == expected
    if change != "frequency":  # which this model's answer happens to be the same with
        assert choice.text != complete(server).choices[0].text
    # Scores are the model's, whatever was changed.
    rows = reference([*PROMPT, *expected])[len(PROMPT) - 1 :]
    values = [row[token] for row, token in zip(rows, expected, strict=False)]
    assert choice.logprobs.token_logprobs == pytest.approx(values, **CLOSE)


def test_a_bias_is_added_at_each_step(server, names, reference):
    bias = {str(number(names, letter)): 8 for letter in "xyz"}
    (choice,) = complete(server, logprobs=0, logit_bias=bias).choices

    def formula(row, made):
        for token, added in bias.items():
            row[int(token)] += added
        return row

    expected = greedy_by_formula(reference, formula)
    assert [number(names, name) for name in choice.logprobs.tokens] == expected
    only = complete(server, logit_bias={str(number(names, "q")): 100}, max_tokens=5)
    assert only.choices[0].text == "qqqqq"
    plain = complete(server, max_tokens=1, logprobs=0).choices[0].logprobs.tokens[0]
    never = complete(server, max_tokens=1, logit_bias={str(number(names, plain)): -100}, logprobs=0)
    assert never.choices[0].logprobs.tokens != [plain]


def test_min_p_leaves_tokens_that_are_likely_enough(server, reference, names):
    options = {"temperature": 2, "seed": 3, "logprobs": 0, "n": 8}
    narrow = complete(server, extra_body={"min_p": 0.2}, **options)
    wide = complete(server, **options)

    def least(answer):
        """The least share of the most likely token's probability, at the temperature."""
        shares = []
        for choice in answer.choices:
            tokens = [number(names, name) for name in choice.logprobs.tokens]
            for row, token in zip(
                reference([*PROMPT, *tokens])[len(PROMPT) - 1 :], tokens, strict=False
            ):
                shares.append(np.exp((row[token] - row.max()) / 2))
        return min(shares)

    assert least(narrow) >= 0.2 - 1e-4 and least(wide) < 0.2
    assert complete(server, temperature=1, extra_body={"min_p": 1}).choices[0].text == (
        complete(server).choices[0].text
    )


def test_both_lanes_at_once_give_what_each_gives_alone(server):
    prompts = [RANDOM.integers(0, 256, int(n)).tolist() for n in RANDOM.integers(1, 80, 12)]
    alone = [complete(server, prompt).choices[0].text for prompt in prompts]

    def ask(number):
        scored = {"logprobs": 1} if number % 2 else {}
        return complete(server, prompts[number], **scored).choices[0].text

    with ThreadPoolExecutor(len(prompts)) as threads:
        assert list(threads.map(ask, range(len(prompts)))) == alone
    server.wait_for("npu_requests_running", 0)
    server.wait_for("npu_cache_blocks_used", 0)
    assert server.metric("npu_cache_blocks") == 128  # the engine's, and as many of the other lane


def test_calls_of_tools_may_be_scored(server):
    tool = {"type": "function", "function": {"name": "now"}}
    options = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    (choice,) = chat(server, max_tokens=150, logprobs=True, **options).choices
    (call,) = choice.message.tool_calls
    assert call.function.name == "now" and json.loads(call.function.arguments) == {}
    text = b"".join(bytes(each.bytes) for each in choice.logprobs.content).decode()
    assert text.startswith("<tool_call>") and '"now"' in text


def test_a_client_that_goes_away_frees_the_blocks(server):
    body = {"prompt": PROMPT, "max_tokens": CONTEXT - len(PROMPT), "temperature": 0}
    body.update(stream=True, logprobs=1, logit_bias={str(END): -100})
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        assert next(answer.iter_lines()).startswith("data: ")
    server.wait_for("npu_requests_running", 0)
    server.wait_for("npu_cache_blocks_used", 0)


def test_offsets_are_of_the_text_and_not_of_what_a_tokenizer_puts_before_it():
    log = TokenLog()
    # As SentencePiece: a special token, a space that the text does not have, half characters.
    texts = [b"<s>", b" Gr", "ü".encode()[:1], "ü".encode()[1:], "ße".encode()]
    log.put_text([Scored(text, None) for text in texts], len("Grüße"))
    assert [token.offset for token in log.take(5)] == [0, 0, 2, 2, 3]
    assert log.take() == []


def test_equal_names_and_numbers_that_json_does_not_have():
    log = TokenLog()
    log.put(Scored(b"a", float("-inf"), (Score(b"b", -0.5), Score(b"b", -0.7))), 0)
    log.put(Scored(b"a", float("nan")), 1)
    found = completion_logprobs(log.take())
    assert found["token_logprobs"] == [-9999.0, -9999.0]
    assert found["top_logprobs"] == [{"b": -0.5, "a": -9999.0}, {"a": -9999.0}]


def test_the_device_draws_from_the_whole_vocabulary(server):
    def text(**options):
        body = {"prompt": "draw", "max_tokens": 40, "seed": 5, **options}
        (choice,) = server.http.post("/v1/completions", json=body).json()["choices"]
        return choice["text"]

    # A seed draws other tokens in each loop, and the one that scores them is the device's.
    for options in ({}, {"top_p": 0.9}):
        assert text(**options) == text(**options, logprobs=0)
    assert text(top_k=20) == text(top_k=20) != text(top_k=20, logprobs=0)

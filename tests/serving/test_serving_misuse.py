"""Wrong requests get a status that says so, in OpenAI's shape, and do no harm."""

from __future__ import annotations

import json

import openai
import pytest
from onnxruntime_npu.serving.embeddings import EmbeddingsRequest
from onnxruntime_npu.serving.request_body import parsed
from onnxruntime_npu.serving.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from pydantic import ValidationError

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def serves_as_before(server):
    yield
    answer = server.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    assert answer.status_code == 200


def check(answer, status, code, param=None):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert error["message"] and "Traceback" not in error["message"]
    return error["message"]


@pytest.mark.parametrize(
    ("changes", "status", "code", "param"),
    [
        ({"model": "gpt-4"}, 404, "model_not_found", "model"),
        ({"temperature": -1}, 400, "invalid_value", "temperature"),
        ({"temperature": 2.1}, 400, "invalid_value", "temperature"),
        ({"temperature": "hot"}, 400, "invalid_value", "temperature"),
        ({"top_p": 1.01}, 400, "invalid_value", "top_p"),
        ({"top_k": -2}, 400, "invalid_value", "top_k"),
        ({"max_tokens": -1}, 400, "invalid_value", "max_tokens"),
        ({"max_tokens": 10**30}, 400, "invalid_value", "max_tokens"),
        ({"max_tokens": 256}, 400, "context_length_exceeded", "prompt"),
        ({"seed": 2**64}, 400, "invalid_value", "seed"),
        ({"n": 0}, 400, "invalid_value", "n"),
        ({"n": 17}, 400, "invalid_value", "n"),
        ({"stop": ""}, 400, "invalid_value", "stop"),
        ({"stop": ["a"] * 17}, 400, "invalid_value", "stop"),
        ({"stream_options": {"include_usage": True}}, 400, "invalid_value", "stream_options"),
        ({"logprobs": 21}, 400, "invalid_value", "logprobs"),
        ({"logprobs": True}, 400, "invalid_value", "logprobs"),
        ({"top_logprobs": 1}, 400, "invalid_value", "top_logprobs"),
        ({"logit_bias": {"258": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"-1": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"a": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5": 101}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5": "1"}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(1025)}}, 400, "invalid_value", "logit_bias"),
        ({"presence_penalty": 2.1}, 400, "invalid_value", "presence_penalty"),
        ({"frequency_penalty": -2.1}, 400, "invalid_value", "frequency_penalty"),
        ({"min_p": 1.1}, 400, "invalid_value", "min_p"),
        ({"best_of": 2}, 400, "unsupported_parameter", "best_of"),
        ({"suffix": "z"}, 400, "unsupported_parameter", "suffix"),
        ({"no_such_thing": 1}, 400, "invalid_value", "no_such_thing"),
        ({"prompt": []}, 400, "invalid_value", "prompt"),
        ({"prompt": ""}, 400, "invalid_value", "prompt"),
        ({"prompt": [258]}, 400, "invalid_value", "prompt"),
        ({"prompt": [-1]}, 400, "invalid_value", "prompt"),
        ({"prompt": [1.5]}, 400, "invalid_value", "prompt"),
        ({"prompt": [[1], "a"]}, 400, "invalid_value", "prompt"),
        ({"prompt": "a" * 300}, 400, "context_length_exceeded", "prompt"),
        ({"prompt": "a" * 1_000_000}, 400, "context_length_exceeded", "prompt"),
        ({"prompt": ["a"] * 1000}, 400, "invalid_value", "prompt"),
        ({"logit_bias": {" 5_0 ": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"\u0663": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"-1": 1}}, 400, "invalid_value", "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, 400, "invalid_value", "logit_bias"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_completions(server, changes, status, code, param):
    answer = server.http.post("/v1/completions", json={"prompt": "a", **changes})
    check(answer, status, code, param)


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": [{"role": "king", "content": "hi"}]}, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, "invalid_value", "messages"),
        ({"messages": [{"role": "tool", "content": "hi"}]}, "invalid_value", "messages"),
        (
            {"messages": [{"role": "tool", "content": "hi", "tool_call_id": "no"}]},
            *("invalid_value", "messages"),
        ),
        ({"messages": [{"role": "developer", "content": "hi"}]}, "invalid_value", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "invalid_value",
            "messages",
        ),
        ({"tools": [{"type": "function"}]}, "invalid_value", "tools"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "invalid_value", "tool_choice"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            *("invalid_value", "tool_choice"),
        ),
        ({"tools": [{"type": "web_search"}]}, "invalid_value", "tools"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format"),
        ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format"),
        (
            {"tools": [TOOL], "response_format": {"type": "grammar", "grammar": 'start: "a"'}},
            *("invalid_value", "response_format"),
        ),
        ({"logprobs": 1}, "invalid_value", "logprobs"),
        ({"top_logprobs": 1}, "invalid_value", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"audio": {}}, "unsupported_parameter", "audio"),
        ({"max_completion_tokens": 1000}, "context_length_exceeded", "messages"),
        ({"prompt": "a"}, "invalid_value", "prompt"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_chat(server, changes, code, param):
    answer = server.http.post("/v1/chat/completions", json={"messages": MESSAGES, **changes})
    check(answer, 400, code, param)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "expected parts of text, got image_url: the models here read and write text only",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "music"}]}]},
            "messages.0.content.0: expected type to be one of 'text', 'refusal', got 'music'",
        ),
        ({"messages": [{"role": "user", "content": [{}]}]}, "expected an object with 'type'"),
        ({"messages": ["hi"]}, "messages.0: expected an object"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages.0.content.0.text: expected a value, got none",
        ),
        ({"messages": [{"role": "user", "content": 3}]}, "valid string"),
        ({"stop": ["a", 3]}, "stop.1: expected"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function"}},
            "tool_choice.function: expected a value, got none",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto"}},
            "tool_choice: expected type to be one of 'function', 'allowed_tools', got 'auto'",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: expected"),
        ({"response_format": {"type": "text", "a": 1}}, "unknown parameter response_format.a"),
        ({"response_format": "json_object"}, "response_format: expected an object"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "'required'"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_value_is_told_what_its_own_form_needs(server, changes, expected):
    answer = server.http.post("/v1/chat/completions", json={"messages": MESSAGES, **changes})
    (param,) = changes.keys() - {"tools"}
    assert expected in check(answer, 400, "invalid_value", param)


def test_values_that_ask_for_nothing_are_taken(server):
    body = {
        **{"messages": MESSAGES, "max_tokens": 1, "n": 1, "logprobs": False, "tools": []},
        **{"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": None, "user": "me"},
        **{"response_format": {"type": "text"}, "tool_choice": "none", "stop": None},
    }
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_value"),
        (b"{", 400, "invalid_value"),
        (b"[1, 2]", 400, "invalid_value"),
        (b'"text"', 400, "invalid_value"),
        (b"[" * 40_000, 400, "bad_body"),
        (b"[" * 100_000, 400, "invalid_value"),
        (b'{"prompt": "\xff"}', 400, "bad_body"),
        (b'{"prompt": "\\ud800"}', 400, "invalid_value"),
        (b'{"prompt": "a", "temperature": NaN}', 400, "invalid_value"),
        (b'{"prompt": "a", "max_tokens": 1e999}', 400, "invalid_value"),
        (b'{"prompt": "' + b"a" * 10_000_000 + b'"}', 413, "body_too_large"),
    ],
    ids=[
        "empty",
        "cut",
        "list",
        "string",
        "deep",
        "deeper",
        "utf8",
        "surrogate",
        "nan",
        "inf",
        "huge",
    ],
)
def test_bodies(server, body, status, code):
    headers = {"Content-Type": "application/json"}
    answer = server.http.post("/v1/completions", content=body, headers=headers)
    assert check(answer, status, code, answer.json()["error"]["param"])


MANY = 5000
WRONG = [
    *((CompletionRequest, {"prompt": [*[1] * MANY, each]}) for each in ("a", None, [1])),
    (CompletionRequest, {"prompt": [[*[1] * MANY, "a"]] * 3}),
    (CompletionRequest, {"prompt": "a", "stop": [1] * MANY}),
    (CompletionRequest, {"prompt": "a", "logit_bias": {str(i): "a" for i in range(1024)}}),
    (EmbeddingsRequest, {"input": [*["a"] * MANY, 1]}),
    (ChatRequest, {"messages": [{}] * MANY}),
    (ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
    (ChatRequest, {"messages": [{"role": "assistant", "tool_calls": [{}] * MANY}]}),
    (ChatRequest, {"messages": MESSAGES, "tools": [{}] * MANY}),
    (TokenizeRequest, {"messages": [5] * MANY}),
    (DetokenizeRequest, {"tokens": ["a"] * MANY}),
]


@pytest.mark.parametrize(("kind", "body"), WRONG, ids=range(len(WRONG)))
def test_many_mistakes_are_not_collected(kind, body):
    """An error takes a kilobyte: of each item of a list that a body has room for, gigabytes."""
    with pytest.raises(ValidationError) as error:
        kind.model_validate(body)
    assert error.value.error_count() <= 1100


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a", **{f"x{i}": 1 for i in range(MANY)}},
        {"prompt": "a", "stream_options": {f"x{i}": 1 for i in range(MANY)}},
        {"prompt": "a", "logit_bias": {f"x{i}": "a" for i in range(100_000)}},
        {"prompt": [*["a"] * MANY, ""]},  # not encoded before they are counted
    ],
    ids=["members", "nested", "dictionary", "prompts"],
)
def test_large_objects_are_refused_as_a_whole(server, body):
    answer = server.http.post("/v1/completions", json=body)
    message = check(answer, 400, "invalid_value", answer.json()["error"]["param"])
    assert "at most" in message


CROWDED = {
    "lists": b'{"prompt": [' + b"[1]," * 300_000 + b"[1]]}",
    "empty": b'{"prompt": "a", "metadata": [' + b"[]," * 300_000 + b"[]]}",
    "objects": b'{"prompt": "a", "stop": [' + b"{}," * 300_000 + b"{}]}",
    "numbers": b'{"prompt": [' + b"1," * 1_500_000 + b"1]}",
    "texts": b'{"prompt": [' + b'"",' * 1_100_000 + b'""]}',
}


@pytest.mark.parametrize("kind", CROWDED)
def test_bodies_of_too_many_values_are_not_parsed(server, kind):
    headers = {"Content-Type": "application/json"}
    answer = server.http.post("/v1/completions", content=CROWDED[kind], headers=headers)
    assert "at most" in check(answer, 400, "invalid_value")


@pytest.mark.parametrize("text", ["[{," * 1_000_000, '\\"[{,' * 600_000], ids=["plain", "escapes"])
def test_what_is_in_texts_is_not_counted(text):
    assert parsed(json.dumps({"prompt": [text, text]}).encode()) == {"prompt": [text, text]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [("9" * 5000, "number of at most"), ("[" * 20_000 + "]" * 20_000, "nested")],
    ids=["digits", "depth"],
)
def test_what_the_parser_does_not_read_is_refused_with_the_reason(server, value, reason):
    body = f'{{"prompt": "a", "user": {value}}}'
    headers = {"Content-Type": "application/json"}
    answer = server.http.post("/v1/completions", content=body, headers=headers)
    assert reason in check(answer, 400, "bad_body")


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("body", [b'{"prompt": "a"}', b"prompt=a", b"\xff\xfe"])
def test_bodies_that_are_not_sent_as_json(server, kind, path, body):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = server.http.post(path, content=body, headers=headers)
    assert "Content-Type: application/json" in check(answer, 400, "invalid_value")


@pytest.mark.parametrize("depth", [200, 600, 900, 980])
def test_deep_values_of_parameters_that_are_not_read(server, depth):
    body = b'{"prompt": "a", "max_tokens": 1, "metadata": ' + b"[" * depth + b"]" * depth + b"}"
    headers = {"Content-Type": "application/json"}
    assert server.http.post("/v1/completions", content=body, headers=headers).status_code < 500


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"])
def test_texts_that_are_surely_too_long_are_not_encoded(server, path):
    text = "a" * 1_000_000
    param, value = {
        "/v1/completions": ("prompt", ["a", text]),
        "/v1/chat/completions": ("messages", [{"role": "user", "content": text}]),
        "/v1/embeddings": ("input", text),
    }[path]
    answer = server.http.post(path, json={param: value})
    message = check(answer, 400, "context_length_exceeded", param)
    assert "characters" in message  # which are counted, not the tokens


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a" * 300}),
        ("/v1/completions", {"prompt": "a", "max_tokens": 300}),
        ("/v1/completions", {"prompt": "a" * 1_000_000}),
        ("/v1/chat/completions", {"messages": MESSAGES * 257}),
        ("/v1/embeddings", {"input": "a" * 129}),
    ],
    ids=["tokens", "room", "characters", "messages", "embeddings"],
)
def test_clients_know_that_a_shorter_prompt_would_do(server, path, body):
    """By these words, since OpenAI's client shows them without the code: LiteLLM and LangChain."""
    answer = server.http.post(path, json=body)
    param = answer.json()["error"]["param"]
    message = check(answer, 400, "context_length_exceeded", param)
    assert message.startswith("the prompt is too long: expected at most ")


def test_more_messages_than_tokens_of_the_context(server):
    body = {"messages": MESSAGES * 257}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert "messages" in check(answer, 400, "context_length_exceeded", "messages")


def test_tools_that_are_nested_too_deeply(server):
    body = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tools": [{"type": '
    body += b'"function", "function": {"name": "f", "parameters": %s1%s}}]}'
    headers = {"Content-Type": "application/json"}
    for depth in (200, 600, 900):
        deep = body % (b'{"a": ' * depth, b"}" * depth)
        answer = server.http.post("/v1/chat/completions", content=deep, headers=headers)
        if depth == 200:
            assert answer.status_code == 200
        else:
            check(answer, 400, "invalid_value", "messages")


def test_a_huge_body_of_unknown_length_is_cut(server):
    def parts():
        for _ in range(100):
            yield b" " * 100_000

    headers = {"Content-Type": "application/json"}
    answer = server.http.post("/v1/completions", content=parts(), headers=headers)
    check(answer, 413, "body_too_large")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("POST", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/completions/", 404, "not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
    ],
)
def test_paths(server, method, path, status, code):
    answer = server.http.request(method, path)
    check(answer, status, code, answer.json()["error"]["param"])


def test_a_path_that_is_not_served_is_told_what_is(server):
    message = check(server.http.post("/v1/chat/completion"), 404, "not_found")
    assert "/v1/chat/completions, " in message and message.endswith("got /v1/chat/completion")
    message = check(server.http.get("/v1/chat/completions"), 405, "method_not_allowed")
    assert message == "expected POST for /v1/chat/completions, got GET"
    assert len(check(server.http.get("/" + "é" * 5000), 404, "not_found")) < 500


def test_responses_are_not_kept(server):
    with pytest.raises(openai.NotFoundError, match="responses are not stored"):
        server.client.responses.retrieve("resp_1")


@pytest.mark.parametrize(("path", "methods"), [("/v1/completions", "POST"), ("/", "GET, HEAD")])
def test_a_wrong_method_is_told_which_ones_are_allowed(server, path, methods):
    allowed = server.http.put(path).headers["allow"].split(", ")
    assert sorted(allowed) == methods.split(", ")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"n": "two"}, 'n: expected a valid integer, got "two"'),
        ({"n": 0}, "n: expected greater than or equal to 1, got 0"),
        ({"stream": 0}, "stream: expected a valid boolean, got 0"),
        ({"temperature": [1]}, "temperature: expected a valid number, got a list"),
        ({"stop": ["a", {}]}, "stop.1: expected a valid string, got an object"),
        ({"stream_options": True}, "stream_options: expected an object, got true"),
        ({"tools": [{**TOOL, "function": {"name": "a b"}}]}, 'a text that matches ^[a-z'),
        ({"messages": []}, "messages: expected at least 1, got 0"),
        ({"tool_choice": "maybe"}, "expected 'none', 'auto' or 'required', got \"maybe\""),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes_are_told_with_what_was_expected_and_given(server, changes, expected):
    answer = server.http.post("/v1/chat/completions", json={"messages": MESSAGES, **changes})
    assert expected in check(answer, 400, "invalid_value", next(iter(changes)))


def test_what_a_client_has_written_is_not_all_repeated(server):
    long = "x" * 1_000_000
    called = [{"role": "tool", "content": "a", "tool_call_id": long}]
    for body in (
        {"messages": MESSAGES, "model": long},
        {"messages": MESSAGES, long: 1},
        {"messages": MESSAGES, "temperature": long},
        {"messages": MESSAGES, "response_format": {"type": long}},
        {"messages": MESSAGES, "tool_choice": long},
        {"messages": MESSAGES, "logit_bias": {long: 1}},
        {"messages": called},
        {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": long}}]},
        {"messages": MESSAGES, "response_format": {"type": "regex", "regex": f"({long[:9000]}"}},
    ):
        answer = server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code in (400, 404) and len(answer.content) < 10_000


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": MESSAGES}])
def test_tokenize_takes_one_thing(server, body):
    check(server.http.post("/tokenize", json=body), 400, "invalid_value")


def test_errors_are_counted_by_kind(server):
    series = 'npu_errors_total{kind="model_not_found"}'
    server.http.post("/v1/completions", json={"prompt": "a", "model": "other"})
    before = server.metric(series)
    server.http.post("/v1/completions", json={"prompt": "a", "model": "other"})
    assert server.metric(series) == before + 1

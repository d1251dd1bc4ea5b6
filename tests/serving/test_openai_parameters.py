"""Every parameter of OpenAI's client has an answer: it is taken, or refused with the reason."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

PATHS = {
    "/v1/completions": (
        completion_create_params.CompletionCreateParamsBase,
        {"prompt": "a", "max_tokens": 1},
    ),
    "/v1/chat/completions": (
        chat_create_params.CompletionCreateParamsBase,
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    ),
    "/v1/responses": (
        response_create_params.ResponseCreateParamsBase,
        {"input": "a", "max_output_tokens": 1},
    ),
    "/v1/embeddings": (
        embedding_create_params.EmbeddingCreateParams,
        {"input": "a", "model": "tiny-encoder"},
    ),
}
PARAMETERS = [
    (path, name)
    for path, (parameters, needed) in PATHS.items()
    for name in get_type_hints(parameters)
    if name not in needed
]
USER = [{"role": "user", "content": "hi"}]


def tool(name):
    return {"type": "function", "function": {"name": name}}


def chat(server, **options):
    body = {"messages": USER, "max_tokens": 1, "temperature": 0, **options}
    return server.http.post("/v1/chat/completions", json=body)


def refusal(answer):
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["code"], error["param"]


@pytest.mark.parametrize(("path", "name"), PARAMETERS)
def test_null_is_a_parameter_that_is_left_out(server, path, name):
    needed = PATHS[path][1]
    plain = server.http.post(path, json=needed)
    answer = server.http.post(path, json={**needed, name: None})
    assert answer.status_code == 200, answer.text
    assert answer.json().keys() == plain.json().keys()


@pytest.mark.parametrize(("path", "name"), PARAMETERS)
def test_no_parameter_is_unknown(server, path, name):
    answer = server.http.post(path, json={**PATHS[path][1], name: {"surely": "wrong"}})
    assert f'unknown parameter {name}"' not in answer.text
    if answer.status_code != 200:
        code, param = refusal(answer)
        assert code in ("invalid_value", "unsupported_parameter") and param == name


def test_a_prompt_cannot_be_left_out(server):
    answer = server.http.post("/v1/completions", json={"prompt": None})
    assert refusal(answer) == ("invalid_value", "prompt")


def test_options_of_a_stream(server):
    options = {"include_usage": None, "include_obfuscation": False}
    assert chat(server, stream=True, stream_options=options).status_code == 200
    padded = chat(server, stream=True, stream_options={"include_obfuscation": True})
    assert refusal(padded) == ("unsupported_parameter", "stream_options")


def test_parts_of_messages(server):
    def tokens(*messages):
        return server.http.post("/tokenize", json={"messages": messages}).json()["tokens"]

    for mark in ({"prompt_cache_breakpoint": {}}, {"cache_control": {"type": "ephemeral"}}):
        marked = {"role": "user", "content": [{"type": "text", "text": "a", **mark}]}
        assert tokens(marked) == tokens({"role": "user", "content": "a"})
    said = tokens({"role": "assistant", "content": "no"})
    part = {"type": "refusal", "refusal": "no"}
    assert tokens({"role": "assistant", "content": [part]}) == said
    assert tokens({"role": "assistant", "content": None, "refusal": "no"}) == said
    answer = chat(server, messages=[{"role": "user", "content": [part]}])
    assert refusal(answer) == ("invalid_value", "messages")


def allowed(mode, *names):
    tools = [tool(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_some_of_the_tools_may_be_allowed(server):
    offered = {"tools": [tool("f"), tool("g"), tool("h")], "max_tokens": 100, "temperature": 1}
    for seed in range(6):
        answer = chat(server, **offered, tool_choice=allowed("required", "g", "h"), seed=seed)
        (choice,) = answer.json()["choices"]
        if choice["finish_reason"] == "tool_calls":
            called = {call["function"]["name"] for call in choice["message"]["tool_calls"]}
            assert called <= {"g", "h"}
    assert chat(server, **offered, tool_choice=allowed("auto", "g")).status_code == 200
    for wrong in (allowed("auto", "g", "other"), allowed("auto"), allowed("none", "g")):
        assert refusal(chat(server, **offered, tool_choice=wrong)) == (
            *("invalid_value", "tool_choice"),
        )


@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_an_answer_of_no_tokens_scores_the_prompt(server, logprobs):
    """How evaluations ask for the log-probabilities of a text, and for nothing else."""
    body = {"prompt": "some text", "echo": True, "logprobs": logprobs, "temperature": 0}
    none = server.http.post("/v1/completions", json={**body, "max_tokens": 0}).json()
    one = server.http.post("/v1/completions", json={**body, "max_tokens": 1}).json()
    (choice,), (longer,) = none["choices"], one["choices"]
    assert choice["text"] == "some text" and choice["finish_reason"] == "length"
    counts = {"prompt_tokens": 9, "completion_tokens": 0, "total_tokens": 9}
    assert none["usage"] == {**counts, "prompt_tokens_details": {"cached_tokens": 0}}
    if logprobs is None:
        assert choice["logprobs"] is None
        return
    for name, values in choice["logprobs"].items():
        assert values == longer["logprobs"][name][:9]
    assert choice["logprobs"]["tokens"] == list("some text")


def test_an_answer_of_no_tokens_may_be_asked_for_in_other_ways(server):
    def complete(**options):
        return server.http.post("/v1/completions", json={"max_tokens": 0, **options})

    assert complete(prompt="a").json()["choices"][0]["text"] == ""
    full = complete(prompt=[5] * 256, echo=True, logprobs=0).json()["choices"][0]["logprobs"]
    assert len(full["tokens"]) == len(full["token_logprobs"]) == 256
    assert refusal(complete(prompt=[5] * 257, echo=True))[0] == "context_length_exceeded"
    two = complete(prompt=["ab", "cd"], echo=True, n=2).json()["choices"]
    assert [choice["text"] for choice in two] == ["ab", "ab", "cd", "cd"]
    streamed = complete(prompt="ab", echo=True, stream=True).text
    assert '"text": "ab"' in streamed and streamed.endswith("data: [DONE]\n\n")
    assert refusal(chat(server, max_tokens=0)) == ("invalid_value", "max_tokens")
    server.wait_for("npu_requests_running", 0)
    server.wait_for("npu_cache_blocks_used", 0)

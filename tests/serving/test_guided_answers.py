"""Answers that have to be JSON, of a pattern, or calls of tools, of a random model."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Literal

import openai
import pydantic
import pytest
from onnxruntime_npu.serving import grammar_checks
from onnxruntime_npu.serving.engine_messages import Guidance
from onnxruntime_npu.serving.grammar_checks import GrammarChecks

from .conftest import ALTERNATIVES, weather_tool

USER = [{"role": "user", "content": "What?"}]
WEATHER = weather_tool(
    {"city": {"enum": ["Köln", "Ürümqi"]}, "days": {"$ref": "#/$defs/days"}},
    **{"$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 14}}},
)
NOW = {"type": "function", "function": {"name": "now"}}


class Place(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["city", "river"]
    code: str = pydantic.Field(pattern="^[A-Z]{3}$")
    levels: list[Literal[1, 20, 300]] = pydantic.Field(min_length=2, max_length=3)


def ask(server, messages=USER, **options):
    options = {"temperature": 1.5, "max_tokens": 150, **options}
    return server.client.chat.completions.create(model="tiny", messages=messages, **options)


def check_weather(call):
    arguments = json.loads(call.function.arguments)
    assert call.type == "function" and call.function.name == "weather"
    assert arguments.keys() == {"city", "days"}
    assert arguments["city"] in ("Köln", "Ürümqi") and 1 <= arguments["days"] <= 14
    return arguments


@pytest.mark.parametrize("seed", range(4))
def test_json_of_a_schema(server, seed):
    answer = server.client.chat.completions.parse(
        model="tiny", messages=USER, response_format=Place, seed=seed, max_tokens=150
    )
    assert isinstance(answer.choices[0].message.parsed, Place)
    text = answer.choices[0].message.content
    assert text == json.dumps(json.loads(text))  # in Python's layout
    assert answer.choices[0].finish_reason == "stop"


def test_any_object(server):
    texts = [
        ask(server, seed=seed, max_tokens=200, response_format={"type": "json_object"})
        for seed in range(4)
    ]
    choices = [answer.choices[0] for answer in texts]
    assert all(choice.message.content.startswith("{") for choice in choices)
    for choice in choices:
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content), dict)
    assert any(choice.finish_reason == "stop" for choice in choices)


def test_a_pattern_and_a_grammar_of_completions_and_streams(server):
    pattern = "[0-9]{3}/[a-c]+z"

    def complete(format, **options):
        return server.client.completions.create(
            **{"model": "tiny", "prompt": "a", "max_tokens": 100, "temperature": 1.3, "n": 3},
            **{"extra_body": {"response_format": format}, **options},
        )

    whole = complete({"type": "regex", "regex": pattern})
    assert all(re.fullmatch(pattern, choice.text) for choice in whole.choices)
    grammar = 'start: "yes" | "no" rest\nrest: "t"*'
    texts = {choice.text for choice in complete({"type": "grammar", "grammar": grammar}).choices}
    assert all(text == "yes" or re.fullmatch("not*", text) for text in texts)
    streamed = ["", "", ""]
    for event in complete({"type": "regex", "regex": pattern}, stream=True):
        streamed[event.choices[0].index] += event.choices[0].text
    assert all(re.fullmatch(pattern, text) for text in streamed)


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize(
    "form",
    [
        {
            "type": "json_schema",
            "json_schema": {"name": "a", "schema": {"enum": ["é", "à", "日本", "日中"]}},
        },
        {"type": "regex", "regex": "é|à|日(本|中)"},
        {"type": "grammar", "grammar": '%llguidance {}\nstart: "é" | "à" | "日本" | "日中"'},
    ],
    ids=lambda form: form["type"],
)
def test_texts_that_part_within_a_character(server, form, logprobs):
    answer = server.client.completions.create(
        model="tiny",
        prompt="a",
        max_tokens=20,
        n=8,
        temperature=2,
        seed=1,
        logprobs=logprobs,
        extra_body={"response_format": form},
    )
    texts = {choice.text.strip('"') for choice in answer.choices}
    assert len(texts) > 1 and texts <= {"é", "à", "日本", "日中"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": {"type": "regex", "regex": "("}}, "response_format"),
        ({"response_format": {"type": "regex", "regex": "a\0b"}}, "response_format"),
        ({"response_format": {"type": "regex", "regex": "a" * 100_001}}, "response_format"),
        ({"response_format": {"type": "grammar", "grammar": "start: foo"}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "nothing"}},
                }
            },
            "response_format",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"not": {"type": "null"}}},
                    }
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
    ids=["pattern", "zero", "long", "grammar", "schema", "tool"],
)
def test_what_is_no_grammar_is_refused_with_a_status(server, options, param, stream):
    body = {"messages": USER, "max_tokens": 5, "stream": stream, **options}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", param)


def test_a_format_that_the_engine_alone_does_not_know(server):
    """Its grammars are of an older version than those that are read before."""
    schema = {"type": "object", "properties": {"link": {"type": "string", "format": "uri"}}}
    form = {"type": "json_schema", "json_schema": {"name": "page", "schema": schema}}
    body = {"messages": USER, "max_tokens": 5, "response_format": form}
    answer = server.http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "response_format"
    assert error["message"].startswith("Unknown format: uri: leave it out of the schema")


CHAIN = [*(f"r{i}: r{i + 1}" for i in range(6000)), 'r6000: "a"', "start: r0"]
COMPLEX = {
    "stack": {"type": "grammar", "grammar": "\n".join(CHAIN)},
    "later": {"type": "grammar", "grammar": f"start: /b/ rest\n{ALTERNATIVES}"},
    "time": {
        "type": "json_schema",
        "json_schema": {
            "name": "a",
            "schema": {"type": "object", "properties": {f"v{i}": {} for i in range(6000)}},
        },
    },
    "none": {"type": "grammar", "grammar": "start: start"},
    **{
        name: {"type": "json_schema", "json_schema": {"name": "many", "schema": schema}}
        for name, schema in {
            "least": {"type": "array", "minItems": 100_000_000},
            "most": {"type": "array", "items": {"type": "integer"}, "maxItems": 1_000_000},
            "float": {"type": "array", "maxItems": 1e9},
            "sum": {"properties": {n: {"type": "array", "maxItems": 6000} for n in "ab"}},
        }.items()
    },
    "items in a grammar": {
        "type": "grammar",
        "grammar": 'start: "%json {" %json {"type": "array", "max\\u0049tems": 100000000}',
    },
}


@pytest.mark.parametrize("logprobs", [None, 0])
@pytest.mark.parametrize("kind", COMPLEX)
def test_a_grammar_that_is_too_complex_harms_nobody_else(server, kind, logprobs):
    engine = server.engine_process()
    body = {"prompt": "a", "response_format": COMPLEX[kind], "logprobs": logprobs}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "response_format")
    body["response_format"] = {"type": "regex", "regex": "b{3}"}
    answer = server.http.post("/v1/completions", json=body)
    assert answer.json()["choices"][0]["text"] == "bbb"
    assert server.engine_process() == engine


def test_a_process_that_has_ended_between_grammars_is_started_again(server):
    def complete(pattern):
        format = {"type": "regex", "regex": pattern}
        body = {"prompt": "a", "max_tokens": 5, "response_format": format}
        return server.http.post("/v1/completions", json=body)

    assert complete("[xyz]").status_code == 200
    reader = server.grammar_process()
    os.kill(reader, signal.SIGKILL)
    while Path(f"/proc/{reader}").exists():  # until the server has noticed
        time.sleep(0.01)
    assert complete("[uvw]").status_code == 200
    assert server.grammar_process() != reader


def test_a_reader_of_grammars_that_fails_to_start_is_tried_again(tmp_path, monkeypatch):
    started = []

    class Killed:
        """A process that ends before it is ready; the one after it reads grammars."""

        def __init__(self, module, arguments, take):
            started.append(module)
            self.take = take
            self.ready = len(started) == failures + 1
            if self.ready:
                take(True)

        async def until_ended(self):
            if self.ready:
                await asyncio.Event().wait()
            return -9

        def send(self, guidance):
            self.take(f"no {guidance.text}")

    async def reasons(count):
        checks = GrammarChecks(tmp_path)
        texts = [Guidance("regex", str(i), "response_format") for i in range(count)]
        found = [await checks._reason(text) for text in texts]
        await checks.stop()
        return found

    monkeypatch.setattr(grammar_checks, "ChildConnection", Killed)
    failures = 2
    assert asyncio.run(reasons(4)) == ["", "", "no 2", "no 3"] and len(started) == 3
    started.clear()
    failures = 9
    assert asyncio.run(reasons(5)) == [""] * 5 and len(started) == 3


def test_a_schema_of_a_tool_that_is_none(server):
    body = {"messages": USER, "tools": [weather_tool({"city": {"type": "strin"}})]}
    body["tool_choice"] = "required"
    answer = server.http.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "tools"
    assert "Invalid type: strin" in error["message"] and "\n" not in error["message"]


def test_answers_that_openais_client_has_read_are_sent_back(server):
    chat = server.client.chat.completions
    options = {"model": "tiny", "messages": USER, "max_tokens": 180, "seed": 1}
    called = {
        "tools": [openai.pydantic_function_tool(Place, name="place")],
        "tool_choice": {"type": "function", "function": {"name": "place"}},
    }
    with chat.stream(**options, **called) as events:
        streamed = events.get_final_completion()
    read = [chat.parse(**options, response_format=Place), chat.parse(**options, **called), streamed]
    said = [answer.choices[0].message for answer in read]
    assert isinstance(said[0].parsed, Place)
    assert all(isinstance(m.tool_calls[0].function.parsed_arguments, Place) for m in said[1:])
    for message in said:
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": "ok"}
            for call in message.tool_calls or []
        ]
        for sent in (message, message.model_dump(warnings=False)):
            ask(server, [*USER, sent, *results], max_tokens=1)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("kind", ["string", ["object", "null"], None])
def test_parameters_of_a_tool_are_those_of_an_object(server, kind, choice):
    """Else what has to be a call would be one whose arguments are none, and so text."""
    function = {"name": "f", "parameters": {"type": kind}}
    body = {"messages": USER, "tools": [{"type": "function", "function": function}]}
    answer = server.http.post("/v1/chat/completions", json={**body, "tool_choice": choice})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == "tools"
    assert "expected parameters of f of the type object, got" in error["message"]


@pytest.mark.parametrize(
    "schema", [{}, {"anyOf": [{"enum": [{"a": 1}]}, {"enum": ["b"]}]}], ids=["any", "either"]
)
def test_parameters_without_a_type_are_an_object(server, schema):
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for seed in range(4):
        options = {"tools": [tool], "tool_choice": "required", "seed": seed}
        (choice,) = ask(server, **options, parallel_tool_calls=False).choices
        if choice.finish_reason == "length":
            continue
        (call,) = choice.message.tool_calls
        assert isinstance(json.loads(call.function.arguments), dict)


@pytest.mark.parametrize("seed", range(3))
def test_a_tool_that_has_to_be_called(server, seed):
    named = {"type": "function", "function": {"name": "weather"}}
    (choice,) = ask(server, tools=[NOW, WEATHER], tool_choice=named, seed=seed).choices
    (call,) = choice.message.tool_calls
    check_weather(call)
    # As OpenAI has it for a function that was named.
    assert choice.message.content is None and choice.finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_no_text(server, stream):
    weather = {"type": "function", "function": {"name": "weather"}}
    text, calls = "", []
    given = {"tools": [WEATHER], "tool_choice": weather, "max_tokens": 60, "stream": stream}
    answer = ask(server, **given)
    for each in answer if stream else [answer]:
        (choice,) = each.choices
        part = choice.delta if stream else choice.message
        text += part.content or ""
        calls += part.tool_calls or []
    (call,) = calls
    assert text == "" and choice.finish_reason == "length"
    assert call.function.name == "weather" and call.function.arguments.startswith("{")
    with pytest.raises(ValueError):
        json.loads(call.function.arguments)


def test_one_of_several_tools_once_or_more(server):
    names, counts = set(), set()
    for seed in range(8):
        options = {"tools": [NOW, WEATHER], "tool_choice": "required", "seed": seed}
        (choice,) = ask(server, **options, parallel_tool_calls=seed % 2 == 0).choices
        if choice.finish_reason == "length":
            continue
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        calls = choice.message.tool_calls
        assert seed % 2 == 0 or len(calls) == 1
        for call in calls:
            if call.function.name == "weather":
                check_weather(call)
            else:
                assert json.loads(call.function.arguments) == {}
            names.add(call.function.name)
        counts.add(len(calls))
        if seen := names == {"now", "weather"} and max(counts) > 1:
            break
    assert seen, (names, counts)


def test_a_streamed_call_is_the_whole_one(server):
    options = {"tools": [WEATHER], "tool_choice": "required", "seed": 5}
    options["parallel_tool_calls"] = False
    whole = ask(server, **options).choices[0].message.tool_calls[0]
    with server.client.chat.completions.stream(
        model="tiny", messages=USER, temperature=1.5, max_tokens=150, **options
    ) as events:
        put_together = events.get_final_completion().choices[0]
    assert put_together.finish_reason == "tool_calls"
    (call,) = put_together.message.tool_calls
    assert call.function.name == "weather"
    assert call.function.arguments == whole.function.arguments
    assert check_weather(call) and call.id.startswith("call_") and call.id != whole.id


def test_tools_may_be_called_or_not(server):
    """Text or calls, as the model decides; of this one the text is limited to see both."""
    kinds = set()
    for seed in range(12):
        options = {"tools": [NOW], "response_format": {"type": "regex", "regex": "<u?"}}
        message = ask(server, **options, seed=seed).choices[0].message
        if message.tool_calls:
            assert {call.function.name for call in message.tool_calls} == {"now"}
        else:
            assert re.fullmatch("<u?", message.content)
        kinds.add(bool(message.tool_calls))
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"a/b", "a/b"),
        (r"a\/b", "a/b"),
        (r"a\\/b", "a\\/b"),
        (r"a\\\/b", "a\\/b"),
        ("a\nb", "a\nb"),
        ("a\\\nb", "a\nb"),
        (r"\d{0}a\n//b", "a\n//b"),
    ],
)
def test_patterns_beside_tools_are_those_without(server, pattern, text):
    """They are written into a grammar there, between slashes."""
    format = {"type": "regex", "regex": pattern}
    for tools in ([], [NOW]):
        message = ask(server, response_format=format, tools=tools, seed=1).choices[0].message
        assert message.tool_calls or message.content == text


def test_text_of_an_answer_that_is_a_call_is_one(server):
    """What a model writes without being made to, here by a pattern, is read."""
    written = r'Wait\. <tool_call>\n\{"name": "now"\}\n</tool_call>'
    format = {"type": "regex", "regex": written}
    offered = {"tools": [NOW], "tool_choice": "auto", "temperature": 0}
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    (choice,) = ask(server, **offered, response_format=format).choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    assert choice.message.content in (None, "Wait.")  # the grammar leaves both ways open
    # Without tools the same text is text.
    (choice,) = ask(server, temperature=0, response_format=format).choices
    assert choice.message.content == 'Wait. <tool_call>\n{"name": "now"}\n</tool_call>'
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"
    # A strict function is no obligation to call it.
    answer = ask(server, tools=[strict], max_tokens=20).choices[0]
    assert answer.message.content and not answer.message.tool_calls


def test_a_conversation_with_calls_goes_on(server):
    options = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    first = ask(server, **options, seed=1).choices[0].message
    (call,) = first.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = ask(server, [*USER, first, result], tools=[WEATHER], max_tokens=3)
    assert second.choices[0].message.content
    # The answer itself, as the client has it, and the template's view of it.
    third = ask(server, [*USER, second.choices[0].message, *USER], max_tokens=3)
    assert third.choices[0].message.content
    arguments = json.dumps(json.loads(call.function.arguments), ensure_ascii=False)
    rendered = (
        "<start>user\nWhat?<end><start>assistant\n<tool_call>\n"
        f'{{"name": "weather", "arguments": {arguments}}}\n</tool_call><end>'
        "<start>tool\nsunny<end><start>assistant\n"
    )
    body = {"messages": [*USER, first.model_dump(), result]}
    tokens = server.http.post("/tokenize", json=body).json()["tokens"]
    assert tokens == server.http.post("/tokenize", json={"prompt": rendered}).json()["tokens"]


def test_echo_begins_the_answer_with_the_prompt(server):
    options = {"model": "tiny", "max_tokens": 4, "temperature": 0}
    plain = server.client.completions.create(prompt=["ab", "cd"], **options)
    echoed = server.client.completions.create(prompt=["ab", "cd"], echo=True, **options)
    expected = [p + c.text for p, c in zip(["ab", "cd"], plain.choices, strict=True)]
    assert [choice.text for choice in echoed.choices] == expected
    tokens = server.http.post("/tokenize", json={"prompt": "ab"}).json()["tokens"]
    events = server.client.completions.create(prompt=tokens, echo=True, stream=True, **options)
    assert "".join(event.choices[0].text for event in events) == expected[0]


def test_tools_are_of_chats(server):
    with pytest.raises(openai.BadRequestError) as refused:
        server.client.completions.create(model="tiny", prompt="a", extra_body={"tools": [NOW]})
    assert refused.value.param == "tools"

"""Calls of tools in text, however it is cut, in each of the ways that models write them."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime_npu.serving.served_model import ServedModel
from onnxruntime_npu.serving.tool_calls import ToolCall, ToolCallParser
from onnxruntime_npu.serving.tool_formats import read_calls, tool_format

# By the part of a chat template that shows the way, and added tokens.
HERMES = ("{% for tool in tools %}<tool_call>", [])
MISTRAL = ("[AVAILABLE_TOOLS] [TOOL_CALLS]", [])
PHI = ("<|tool|>", ["<|tool_call|>", "<|/tool_call|>"])
GRANITE = ("<|tool_call|>", ["<|tool_call|>"])
LLAMA = ('{"name": function name, "parameters": dictionary}', ["<|python_tag|>"])
CALLS = [("weather", {"city": "Köln", "days": 3}), ("now", {})]
WRITTEN = {
    "hermes": (
        HERMES,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    ),
    "mistral": (
        MISTRAL,
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Köln", "days": 3}}, '
        '{"name": "now", "arguments": {}}]',
    ),
    "phi": (
        PHI,
        '<|tool_call|>[{"name": "weather", "arguments": {"city": "Köln", "days": 3}},'
        '{"name": "now"}]<|/tool_call|>',
    ),
    "granite": (
        GRANITE,
        '<|tool_call|>[{"name":"weather","arguments":{"city":"Köln","days":3}},'
        '{"name":"now","arguments":{}}]',
    ),
    "llama": (
        LLAMA,
        '{"name": "weather", "parameters": {"city": "Köln", "days": 3}}; '
        '{"name": "now", "parameters": {}}',
    ),
}


def parse(form, pieces, names=("weather", "now")):
    parser = ToolCallParser(form, names)
    parts = [part for piece in pieces for part in parser.put(piece)] + parser.end()
    text = "".join(part for part in parts if isinstance(part, str))
    return text, [part for part in parts if isinstance(part, ToolCall)]


def cut(text, places):
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


@pytest.mark.parametrize("way", WRITTEN)
@given(places=st.lists(st.integers(0, 500), max_size=8))
def test_calls_are_found_wherever_text_is_cut(way, places):
    (template, added), written = WRITTEN[way]
    form = tool_format(template, added)
    before = "" if way == "llama" else "I shall look.\n"
    text, calls = parse(form, cut(before + written, places))
    assert text == before.strip()
    assert [(call.name, json.loads(call.arguments)) for call in calls] == CALLS
    assert [call.index for call in calls] == [0, 1]
    identifiers = {call.identifier for call in calls}
    assert len(identifiers) == 2
    if way == "mistral":  # whose template demands it
        assert all(len(each) == 9 and each.isalnum() for each in identifiers)


@pytest.mark.parametrize("way", WRITTEN)
def test_an_answer_of_calls_may_break_off_anywhere(way):
    (template, added), written = WRITTEN[way]
    form = tool_format(template, added)
    whole = '{"city": "Köln", "days": 3}'
    seen = set()
    for end in range(len(written) + 1):
        parser = ToolCallParser(form, ["weather", "now"])
        parts = parser.put(written[:end]) + parser.end(breaks_off=True)
        calls = [(part.name, part.arguments) for part in parts]  # and no text
        assert [name for name, _ in calls] == ["weather", "now"][: len(calls)]
        for name, arguments in calls:
            expected = whole if name == "weather" else "{}"
            assert expected.replace(" ", "").startswith(arguments.replace(" ", ""))
        assert len(calls) < 2 or json.loads(calls[0][1]) == CALLS[0][1]
        seen.add(len(calls))
    assert seen == {0, 1, 2}
    assert [(name, json.loads(arguments)) for name, arguments in calls] == CALLS


@given(st.lists(st.sampled_from(["a", " ", "\n", "<", "<tool_call>", "tool_", "call>", "{"])))
def test_text_without_calls_is_passed_on_as_it_is(pieces):
    text, calls = parse(tool_format(*HERMES), pieces)
    assert calls == []
    assert text == "".join(pieces)


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "other", "arguments": {}}',
        '{"name": "now", "arguments": [1]}',
        '{"name": "now", "arguments": {}',
        '{"name": 5}',
        "[]",
        '{"name": "now"} and more',
        '{"name": "now", "arguments": {"a": 1,}}',
        "plain words",
        "",
    ],
)
def test_what_is_no_call_of_an_offered_function_is_text(body):
    text = f"<tool_call>{body}</tool_call>"
    assert parse(tool_format(*HERMES), [text]) == (text, [])
    assert parse(tool_format(*LLAMA), [body]) == (body, [])


def test_text_between_and_after_calls_is_kept():
    call = '<tool_call>{"name": "now"}</tool_call>'
    text, calls = parse(tool_format(*HERMES), [f"one {call}\n two", " three", f"\n{call}", " \n"])
    assert (text, len(calls)) == ("one two three", 2)


def test_arguments_stay_as_they_were_written():
    assert read_calls('{"name":"f","arguments":{"x": 1e400, "y":1.50}}', "arguments") == [
        ("f", '{"x": 1e400, "y":1.50}')
    ]
    assert read_calls('{"name":"f","arguments":"{\\"x\\": 1}"}', "arguments") == [("f", '{"x": 1}')]


def test_marks_may_be_special_tokens(served_directory):
    model = ServedModel(served_directory)
    assert model.literal("<start>[", ["<start>"]) == '<[256]> "["'
    assert model.literal("<start>[", ["<other>"]) == '"<start>["'
    assert model.literal("", ["<start>"]) == ""
    for shown, expected in (((), "ab"), (["<start>"], "a<start>b")):
        pieces = []
        stream = model.text_stream(pieces.append, shown)
        for token in model.encode("a<start>b<end>"):
            stream.put([token])
        stream.end()
        assert "".join(pieces) == expected
    assert model.tool_format is tool_format(*HERMES)


@pytest.mark.parametrize(
    "template",
    [
        "{{ tools }}",
        "{{ tools }}<tool_call>\n<function=example>",
        "{{ tools }}<tool_call>{name}<arg_key>",
        "{{ tools }}[TOOL_CALLS]name[ARGS]{}",
    ],
)
def test_other_ways_are_not_taken_for_one_of_these(template):
    assert tool_format(template, []) is None

"""/v1/responses by OpenAI's client as it is: what it says is what a chat says, in other words."""

from __future__ import annotations

import json
from typing import Literal

import openai
import pydantic
import pytest

OPTIONS = {"model": "tiny", "temperature": 0, "max_output_tokens": 24}
FUNCTION = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Köln"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALLED = [
    {"role": "user", "content": "What?"},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Köln"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
]


class Place(pydantic.BaseModel):
    """A place."""

    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["city", "river"]
    level: Literal[1, 2, 3]


def respond(server, given="What?", **options):
    return server.client.responses.create(**{**OPTIONS, **options}, input=given)


def chat(server, messages, **options):
    body = {"messages": messages, "max_tokens": 24, "temperature": 0, **options}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_answer_is_that_of_a_chat(server):
    answer = respond(server, instructions="Be kind.", metadata={"a": "b"}, top_p=0.5)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "What?"}]
    expected = chat(server, messages)
    (item,) = answer.output
    (part,) = item.content
    assert (item.type, item.role, part.type) == ("message", "assistant", "output_text")
    assert answer.output_text == part.text == expected["choices"][0]["message"]["content"]
    assert (answer.object, answer.model, answer.error) == ("response", "tiny", None)
    assert answer.instructions == "Be kind." and answer.metadata == {"a": "b"}
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0, 0.5, 24)
    assert answer.tools == [] and answer.tool_choice == "auto" and answer.parallel_tool_calls
    assert answer.to_dict()["store"] is False and answer.truncation == "disabled"
    usage = expected["usage"]
    assert answer.usage.input_tokens == usage["prompt_tokens"]
    assert answer.usage.output_tokens == usage["completion_tokens"]
    assert answer.usage.total_tokens == usage["total_tokens"]
    assert answer.usage.output_tokens_details.reasoning_tokens == 0
    cut = expected["choices"][0]["finish_reason"] == "length"
    assert answer.status == item.status == ("incomplete" if cut else "completed")


def test_an_answer_that_is_cut_off_says_so(server):
    answer = respond(server, max_output_tokens=1)
    assert answer.status == answer.output[0].status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    text = respond(server).output_text
    whole = respond(server, extra_body={"stop": text[3:6]})
    assert whole.status == whole.output[0].status == "completed"
    assert whole.output_text == text[: text.find(text[3:6])]
    assert whole.incomplete_details is None and whole.completed_at >= whole.created_at


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([{"role": "user", "content": "a"}], [{"role": "user", "content": "a"}]),
        (
            [
                {"role": "developer", "content": [{"type": "input_text", "text": "d"}]},
                {"type": "message", "role": "user", "content": [
                    {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"},
                ]},
                {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                 "content": [{"type": "output_text", "text": "c", "annotations": []}]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            ],
            [
                {"role": "system", "content": "d"},
                {"role": "user", "content": "ab"},
                {"role": "assistant", "content": "c"},
                {"role": "assistant", "content": "no"},
            ],
        ),
        (
            [
                *CALLED[:1],
                {"role": "assistant", "content": "Wait."},
                CALLED[1],
                {**CALLED[1], "call_id": "c2", "id": None, "status": "completed"},
                {**CALLED[2], "output": [{"type": "input_text", "text": "rain"}]},
                {**CALLED[2], "call_id": "c2"},
            ],
            [
                *CALLED[:1],
                {"role": "assistant", "content": "Wait.", "tool_calls": [
                    {"id": name, "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
                    for name in ("c1", "c2")
                ]},
                {"role": "tool", "content": "rain", "tool_call_id": "c1"},
                {"role": "tool", "content": "rain", "tool_call_id": "c2"},
            ],
        ),
    ],
    ids=["message", "parts", "calls"],
)  # fmt: skip
def test_items_are_the_messages_of_a_chat(server, given, messages):
    given = [dict(item) for item in given]
    if given[0]["role"] == "developer":
        given[0]["role"] = "system"  # the tiny model's template refuses the other one
    answer, expected = respond(server, given), chat(server, messages)
    assert answer.usage.input_tokens == expected["usage"]["prompt_tokens"]
    assert answer.output_text == (expected["choices"][0]["message"]["content"] or "")


def test_a_stream_tells_of_the_whole_answer(server):
    whole = respond(server)
    events = list(respond(server, stream=True, stream_options={"include_obfuscation": False}))
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1 and "".join(each.delta for each in deltas) == whole.output_text
    begin = ["response.created", "response.in_progress"]
    begin += ["response.output_item.added", "response.content_part.added"]
    end = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    end += [f"response.{whole.status}"]
    kinds = [event.type for event in events]
    assert kinds == [*begin, *(each.type for each in deltas), *end]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].response.status == events[1].response.status == "in_progress"
    assert events[2].item.status == "in_progress" and events[2].item.content == []
    assert events[-4].text == events[-3].part.text == whole.output_text
    last = events[-1].response
    assert last.output[0].content == whole.output[0].content and last.status == whole.status
    assert last.usage.total_tokens == whole.usage.total_tokens
    assert last.output[0].id == events[2].item.id == deltas[0].item_id == events[-2].item.id


def test_the_clients_helper_for_streams(server):
    stop = {"stop": respond(server).output_text[6:9]}
    expected = respond(server, extra_body=stop)
    with server.client.responses.stream(**OPTIONS, input="What?", extra_body=stop) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert final.output_text == expected.output_text and final.status == "completed"


def test_a_stream_is_of_named_events(server):
    body = {"input": "What?", "max_output_tokens": 2, "stream": True}
    with server.http.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert len(lines) % 2 == 0
    for name, data in zip(lines[::2], lines[1::2], strict=True):
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


def test_functions_are_called(server):
    options = {"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False}
    answer = respond(server, **options, max_output_tokens=100)
    (call,) = answer.output
    assert (call.type, call.name, call.status) == ("function_call", "weather", "completed")
    assert json.loads(call.arguments) == {"city": "Köln"} and call.call_id.startswith("call_")
    assert answer.status == "completed" and answer.tool_choice == "required"
    assert answer.tools[0].name == "weather" and answer.tools[0].strict
    # What came back is sent back as it is.
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    assert respond(server, [*CALLED[:1], *answer.output, result], tools=[FUNCTION]).output
    dumped = [item.model_dump() for item in answer.output]
    assert respond(server, [*CALLED[:1], *dumped, result], tools=[FUNCTION]).output

    events = list(respond(server, **options, max_output_tokens=100, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds == [
        *("created", "in_progress", "output_item.added"),
        *("function_call_arguments.delta", "function_call_arguments.done"),
        *("output_item.done", "completed"),
    ]
    assert events[2].item.arguments == "" and events[2].item.name == "weather"
    assert events[3].delta == events[4].arguments == events[5].item.arguments == call.arguments
    with server.client.responses.stream(
        **{**OPTIONS, "max_output_tokens": 100}, input="What?", **options
    ) as stream:
        (made,) = stream.get_final_response().output
    assert made.parsed_arguments == {"city": "Köln"}


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "weather"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "weather"}],
        },
    ],
    ids=["named", "allowed"],
)
def test_one_function_of_several_is_called(server, choice):
    tools = [FUNCTION, {**FUNCTION, "name": "other"}]
    options = {"tools": tools, "tool_choice": choice, "max_output_tokens": 100}
    answer = respond(server, **options, parallel_tool_calls=False)
    assert [item.name for item in answer.output] == ["weather"]
    assert answer.to_dict()["tool_choice"] == choice
    text = respond(server, tools=tools, tool_choice="none")
    assert [item.type for item in text.output] == ["message"]


def test_a_call_that_is_cut_off_is_incomplete(server):
    for count in (20, 45):
        answer = respond(
            server, tools=[FUNCTION], tool_choice="required", max_output_tokens=count, stream=True
        )
        last = list(answer)[-1]
        assert last.type == "response.incomplete"
        assert [item.status for item in last.response.output] == ["incomplete"]


def test_answers_of_a_form(server):
    options = {**OPTIONS, "max_output_tokens": 100, "input": "Where?"}
    parsed = server.client.responses.parse(**options, text_format=Place)
    assert isinstance(parsed.output_parsed, Place) and parsed.status == "completed"
    again = [{"role": "user", "content": "Where?"}, *parsed.output]
    assert respond(server, [*again, {"role": "user", "content": "And?"}]).output_text
    with server.client.responses.stream(**options, text_format=Place) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "name": "a", "schema": schema}
    answer = respond(server, max_output_tokens=100, text={"format": form})
    assert json.loads(answer.output_text) == {"a": 1}
    assert answer.text.format.name == "a"
    any_object = respond(server, text={"format": {"type": "json_object"}})
    assert any_object.output_text.startswith("{")
    assert respond(server, text={"format": {"type": "text"}}).output_text
    ours = {"text": {"format": {"type": "regex", "regex": "[ab]{3}"}}}
    assert set(respond(server, extra_body=ours).output_text) <= {"a", "b"}


def test_log_probabilities(server):
    options = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    expected = chat(server, [{"role": "user", "content": "What?"}], logprobs=True, top_logprobs=2)
    content = expected["choices"][0]["logprobs"]["content"]
    (part,) = respond(server, **options).output[0].content
    assert [each.to_dict() for each in part.logprobs] == content
    events = list(respond(server, **options, stream=True))
    streamed = [
        token.to_dict()
        for event in events
        if event.type == "response.output_text.delta"
        for token in event.logprobs
    ]
    assert streamed == content[: len(streamed)] and streamed
    done = next(event for event in events if event.type == "response.output_text.done")
    assert [each.to_dict() for each in done.logprobs] == content
    (bare,) = respond(server, include=["message.output_text.logprobs"]).output[0].content
    assert [each.token for each in bare.logprobs] == [each["token"] for each in content]


def test_the_oldest_turns_are_left_out_where_that_is_asked_for(server):
    def turn(letter):
        return [
            {"role": "user", "content": letter * 40},
            {"role": "assistant", "content": letter},
            *CALLED[1:],
        ]

    system = {"role": "system", "content": "s"}
    items = [item for letter in "abcde" for item in turn(letter)]
    items.append({"role": "user", "content": "What?"})
    with pytest.raises(openai.BadRequestError) as error:
        respond(server, [system, *items])
    assert (error.value.code, error.value.param) == ("context_length_exceeded", "input")
    answer = respond(server, [system, *items], truncation="auto")
    assert answer.truncation == "auto" and answer.usage.total_tokens <= 256
    lengths = {
        respond(server, [system, *items[start:]], max_output_tokens=1).usage.input_tokens
        for start in (16, 20)
    }
    assert answer.usage.input_tokens in lengths  # whole turns, and what stands before them
    with pytest.raises(openai.BadRequestError) as error:
        respond(server, "a" * 300, truncation="auto")
    assert error.value.code == "context_length_exceeded"
    short = respond(server, truncation="auto").usage.input_tokens
    assert short == respond(server).usage.input_tokens


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"input": None}, "invalid_value", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": 5}, "invalid_value", "input"),
        ({"input": ["a"]}, "invalid_value", "input"),
        ({"input": "a" * 300}, "context_length_exceeded", "input"),
        ({"input": "a" * 1_000_000}, "context_length_exceeded", "input"),
        ({"input": [{"role": "user", "content": "a"}] * 257}, "context_length_exceeded", "input"),
        ({"input": [{"role": "king", "content": "a"}]}, "invalid_value", "input"),
        ({"input": [{"role": "user"}]}, "invalid_value", "input"),
        ({"input": [{"role": "developer", "content": "a"}]}, "invalid_value", "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "unsupported_parameter", "input"),
        (
            {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]},
            *("unsupported_parameter", "input"),
        ),
        ({"input": [{"type": ["message"]}]}, "unsupported_parameter", "input"),
        ({"input": CALLED[2:]}, "invalid_value", "input"),
        ({"input": [{**CALLED[1], "arguments": "no JSON"}]}, "invalid_value", "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            *("invalid_value", "input"),
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}]},
            *("invalid_value", "input"),
        ),
        ({"instructions": 5}, "invalid_value", "instructions"),
        ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
        ({"reasoning": {"effort": "low"}}, "unsupported_parameter", "reasoning"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 256}, "context_length_exceeded", "input"),
        ({"max_tokens": 5}, "invalid_value", "max_tokens"),
        ({"messages": []}, "invalid_value", "messages"),
        ({"n": 2}, "invalid_value", "n"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"include": ["everything"]}, "invalid_value", "include"),
        ({"truncation": "some"}, "invalid_value", "truncation"),
        ({"metadata": {"a": 5}}, "invalid_value", "metadata"),
        ({"max_tool_calls": []}, "invalid_value", "max_tool_calls"),
        ({"metadata": {str(i): "" for i in range(17)}}, "invalid_value", "metadata"),
        ({"metadata": {"a" * 65: ""}}, "invalid_value", "metadata"),
        ({"stream_options": {}}, "invalid_value", "stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": True}},
            *("invalid_value", "stream_options"),
        ),
        ({"text": "json"}, "invalid_value", "text"),
        ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "invalid_value", "text"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}},
            *("invalid_value", "text"),
        ),
        ({"text": {"format": {"type": "regex", "regex": "("}}}, "invalid_value", "text"),
        ({"text": {"verbosity": "low"}}, "unsupported_parameter", "text"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools"),
        ({"tools": [{"type": "function"}]}, "invalid_value", "tools"),
        ({"tools": [{**FUNCTION, "parameters": {"type": "array"}}]}, "invalid_value", "tools"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "invalid_value", "tool_choice"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "other"}},
            *("invalid_value", "tool_choice"),
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_what_cannot_be_done_is_refused(server, changes, code, param):
    answer = server.http.post("/v1/responses", json={"input": "a", **changes})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error
    assert "Traceback" not in error["message"] and len(error["message"]) < 500


def test_tokens_of_an_input_are_counted(server):
    count = server.client.responses.input_tokens.count
    for given, options in (
        ("What?", {}),
        (CALLED, {"instructions": "Be kind.", "tools": [FUNCTION]}),
        ([{"role": "user", "content": "a" * 100}] * 4, {"truncation": "auto"}),
    ):
        answer = respond(server, given, max_output_tokens=1, **options)
        counted = count(model="tiny", input=given, **options)
        assert counted.object == "response.input_tokens"
        assert counted.input_tokens == answer.usage.input_tokens
    with pytest.raises(openai.BadRequestError, match="at most 256 tokens, got a prompt of 4"):
        count(input="a" * 400)
    with pytest.raises(openai.BadRequestError, match="say it in instructions"):
        count(input="a", personality="friendly")


@pytest.mark.parametrize("path", ["resp_1", "resp_1/cancel", "resp_1/input_items"])
def test_nothing_is_stored(server, path):
    answer = server.http.post(f"/v1/responses/{path}", json={})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "not_found"
    assert server.http.get("/v1/responses").status_code == 405
    assert "expected a path among" in server.http.post("/v1/responses/", json={}).text


def test_a_stream_that_fails_ends_with_an_error(serve):
    server = serve("--deadline", "1").wait_until_ready()

    def begin():
        events = iter(respond(server, max_output_tokens=200, stream=True))
        while next(events).type != "response.output_text.delta":
            pass
        return events

    with server.engine_standing_still(after=begin) as events:
        seen = []
        with pytest.raises(openai.APIError) as error:
            seen.extend(event for event in events if not seen.append(event))
    assert error.value.code == "deadline_exceeded"
    failed = seen[-1]
    assert failed.type == "response.failed" and failed.response.status == "failed"
    assert failed.response.error.code == "server_error"
    server.wait_for("npu_requests_running", 0)
    server.wait_for("npu_cache_blocks_used", 0)

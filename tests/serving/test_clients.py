"""Other clients of OpenAI's interface, as they are: LiteLLM, langchain-openai, OpenAI's agents."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import openai
import pydantic
import pytest

from .conftest import weather_tool

pytestmark = pytest.mark.exhaustive
INSTALL = "pip install 'onnxruntime-npu[test-clients]'"
USER = [{"role": "user", "content": "What?"}]
TOOL = weather_tool({"city": {"enum": ["Köln"]}})


class Place(pydantic.BaseModel):
    """A place."""

    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["city", "river"]
    level: Literal[1, 2, 3]


@pytest.fixture
def litellm(server, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it is downloaded
    module = pytest.importorskip("litellm", reason=INSTALL)
    monkeypatch.setattr(module, "api_base", f"{server.url}/v1")
    monkeypatch.setattr(module, "api_key", "none")
    return module


@pytest.fixture
def langchain_openai(monkeypatch):
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    return pytest.importorskip("langchain_openai", reason=INSTALL)


def test_litellm(litellm, server):
    options = {"model": "openai/tiny", "messages": USER, "max_tokens": 12, "temperature": 0}
    body = {"messages": USER, "max_tokens": 12, "temperature": 0}
    expected = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]
    whole = litellm.completion(**options)
    assert whole.choices[0].message.content == expected["message"]["content"]
    streamed = [
        part.choices[0].delta.content for part in litellm.completion(**options, stream=True)
    ]
    assert "".join(filter(None, streamed)) == expected["message"]["content"]

    scored = litellm.completion(
        **options, logprobs=True, top_logprobs=2, logit_bias={"5": 0.0}, presence_penalty=0.0
    ).choices[0]
    assert scored.message.content == expected["message"]["content"]
    content = scored.logprobs.content
    assert len(content) == 12 and len(content[0].top_logprobs) == 2 and content[0].logprob < 0
    parts = litellm.completion(**options, logprobs=True, top_logprobs=2, stream=True)
    streamed = [part.choices[0].logprobs for part in parts]
    assert sum(len(each.content) for each in streamed if each) == 12
    of_text = {**options, "model": "text-completion-openai/tiny", "prompt": "What?"}
    del of_text["messages"]
    (choice,) = litellm.text_completion(**of_text, logprobs=2).choices
    assert len(choice.logprobs.tokens) == len(choice.logprobs.token_logprobs) == 12

    made = litellm.completion(
        **{**options, "max_tokens": 100}, tools=[TOOL], tool_choice="required",
        parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = made.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Köln"}
    form = {
        "type": "json_schema",
        "json_schema": {"name": "place", "schema": Place.model_json_schema()},
    }
    made = litellm.completion(**{**options, "max_tokens": 100}, response_format=form)
    assert Place.model_validate_json(made.choices[0].message.content)
    vectors = litellm.embedding(model="openai/tiny-encoder", input=["a", "b"]).data
    assert len(vectors) == 2 and len(vectors[0]["embedding"]) == 64
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/other", messages=USER)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**options, "max_tokens": 1000})


def test_langchain(langchain_openai, server):
    from langchain_core.exceptions import ContextOverflowError

    model = langchain_openai.ChatOpenAI(
        model="tiny", base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=100
    )
    whole = model.invoke("What?")
    assert whole.content and whole.usage_metadata["output_tokens"] <= 100
    assert "".join(part.content for part in model.stream("What?")) == whole.content

    scored = model.bind(logprobs=True, top_logprobs=3, logit_bias={5: -1}, max_tokens=12)
    found = scored.invoke("What?").response_metadata["logprobs"]["content"]
    assert len(found) == 12 and len(found[0]["top_logprobs"]) == 3 and found[0]["logprob"] < 0
    parts = [part.response_metadata.get("logprobs") for part in scored.stream("What?")]
    streamed = [token["token"] for part in parts if part for token in part["content"]]
    assert streamed == [token["token"] for token in found]
    penalised = model.bind(presence_penalty=1.0, frequency_penalty=0.5, extra_body={"min_p": 0.1})
    assert penalised.invoke("What?").content

    (call,) = model.bind_tools(
        [TOOL], tool_choice="required", parallel_tool_calls=False
    ).invoke("What?").tool_calls  # fmt: skip
    assert (call["name"], call["args"]) == ("weather", {"city": "Köln"})
    place = model.with_structured_output(Place, method="json_schema").invoke("What?")
    assert isinstance(place, Place)
    with pytest.raises(ContextOverflowError):
        model.invoke("What? " * 100)
    vectors = langchain_openai.OpenAIEmbeddings(
        model="tiny-encoder",
        base_url=f"{server.url}/v1",
        api_key="none",
        check_embedding_ctx_length=False,  # it would count tokens of OpenAI's models
    ).embed_documents(["a", "b"])
    assert len(vectors) == 2 and len(vectors[0]) == 64


def test_responses_by_litellm(litellm, server):
    options = {"model": "openai/tiny", "input": "What?", "temperature": 0}
    expected = server.client.responses.create(**{**options, "model": "tiny"}, max_output_tokens=20)
    whole = litellm.responses(**options, max_output_tokens=20)
    assert whole.output_text == expected.output_text
    streamed = litellm.responses(**options, max_output_tokens=20, stream=True)
    deltas = [event.delta for event in streamed if event.type == "response.output_text.delta"]
    assert "".join(deltas) == expected.output_text
    tool = {"type": "function", **TOOL["function"]}
    (call,) = litellm.responses(
        **options, tools=[tool], tool_choice="required", parallel_tool_calls=False
    ).output
    assert json.loads(call.arguments) == {"city": "Köln"}


def test_responses_by_langchain(langchain_openai, server):
    from langchain_core.exceptions import ContextOverflowError
    from langchain_core.messages import HumanMessage, ToolMessage

    model = langchain_openai.ChatOpenAI(
        model="tiny", base_url=f"{server.url}/v1", api_key="none", temperature=0, max_tokens=100,
        use_responses_api=True,
    )  # fmt: skip
    whole = model.invoke("What?")
    assert whole.text and whole.usage_metadata["output_tokens"] <= 100
    assert "".join(part.text for part in model.stream("What?")) == whole.text
    calling = model.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False)
    made = calling.invoke("What?")
    (call,) = made.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Köln"})
    result = ToolMessage("rain", tool_call_id=call["id"])
    assert model.bind_tools([TOOL]).invoke([HumanMessage("What?"), made, result]).text
    place = model.with_structured_output(Place, method="json_schema").invoke("What?")
    assert isinstance(place, Place)
    with pytest.raises(ContextOverflowError):
        model.invoke("What? " * 100)


def test_responses_by_agents(server):
    agents = pytest.importorskip("agents", reason=INSTALL)
    agents.set_tracing_disabled(True)

    def run(begin, **options):
        async def running():
            client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
            model = agents.OpenAIResponsesModel("tiny", client)
            return await begin(agents.Agent(name="a", model=model, **options))

        return asyncio.run(running())

    async def whole(agent):
        return (await agents.Runner.run(agent, "What?")).final_output

    async def streamed(agent):
        result = agents.Runner.run_streamed(agent, "What?")
        kinds = {event.type async for event in result.stream_events()}
        assert "raw_response_event" in kinds
        return result.final_output

    @agents.function_tool
    def weather(city: Literal["Köln"]) -> str:
        """Tell the weather."""
        return f"rain in {city}"

    settings = agents.ModelSettings(temperature=0, max_tokens=100)
    for begin in (whole, streamed):
        options = {"output_type": Place, "model_settings": settings, "instructions": "Be kind."}
        assert isinstance(run(begin, **options), Place)
    must = agents.ModelSettings(
        temperature=0, max_tokens=100, tool_choice="required", parallel_tool_calls=False
    )
    for begin in (whole, streamed):
        options = {"tools": [weather], "tool_use_behavior": "stop_on_first_tool"}
        assert run(begin, **options, model_settings=must) == "rain in Köln"

"""The paths of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from .answers import CHAT, COMPLETION, ChoicesAnswer, Style
from .chat import Conversation, encode_chat, encode_latest
from .choices import Choice, Choices
from .disconnection import unless_disconnected
from .embeddings import EmbeddingsRequest, check_rows, embeddings_answer
from .engine import Stream
from .event_stream import Answer, EventStream
from .generation_body import Generation
from .page import PAGE
from .request_body import BoundedRoute
from .response_format import ResponseFormat
from .responses_answer import ResponseAnswer
from .responses_request import ResponsesRequest, own_names
from .sampling_options import check_room, randomness, sampling_options
from .schemas import (
    ChatRequest,
    ChoicesRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from .served_directory import ServedDirectory, ServedEncoder
from .served_model import ServedModel
from .service import Service
from .texts import check_tokens
from .tools import Tools, guidance_for, tools_of

router = APIRouter(route_class=BoundedRoute)
# OpenAI's default for completions; a chat goes on to its end.
_COMPLETION_TOKENS = 16


def _service(request: Request) -> Service:
    return request.app.state.service


@router.get("/health")
async def health() -> dict[str, str]:
    """Answer as long as the server lives."""
    return {"status": "alive"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, str]:
    """Answer 200 when requests are served, after the warm-up."""
    for process in _service(request).processes:
        if not process.ready:
            raise process.unavailable()
    return {"status": "ready"}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return counters for Prometheus."""
    service = _service(request)
    for process in service.processes:
        service.metrics.resident.labels(process.name).set(process.resident_bytes())
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/")
async def page() -> Response:
    """Return the page of a chat."""
    return PAGE


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the models."""
    service = _service(request)
    cards = [_card(service, directory) for directory in service.directories]
    return {"object": "list", "data": cards}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Describe a model."""
    service = _service(request)
    return _card(service, service.find(name))


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue prompts."""
    service = _service(request)
    model, engine = service.language_for(body.model)
    engine.check_number(len(body.prompts) * body.n, "prompt")  # before each prompt is encoded
    prompts = await service.tokens(
        model, body.prompts, engine.limits().max_length, body.prompt_name
    )
    echoes = body.prompts if body.echoes else [""] * len(prompts)
    limit = _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    asked = _Asked(prompts, limit, body.response_format, body.n, echoes)
    return await _answer(request, body, asked, _listed(COMPLETION, body))


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Continue a conversation."""
    service = _service(request)
    model, engine = service.language_for(body.model)
    tools = tools_of(model, body.tools or [], body.tool_choice, body.parallel_tool_calls)
    most = engine.limits().max_length
    offered = tools.offered if tools else ()
    conversation = Conversation(body.messages, offered, body.chat_template_kwargs)
    prompt = await service.tokenize(encode_chat, model, conversation, most)
    asked = _Asked([prompt], body.limit, body.response_format, body.n, tools=tools)
    return await _answer(request, body, asked, _listed(CHAT, body))


@router.post("/v1/responses")
async def responses(request: Request, body: ResponsesRequest) -> Response:
    """Continue a conversation, in the words of OpenAI's newer interface."""
    service = _service(request)
    model, engine = service.language_for(body.model)
    with own_names():
        tools = tools_of(model, body.offered, body.choice, body.parallel_tool_calls)
        prompt = await _read_input(service, model, body, tools, engine.limits().max_length)
        asked = _Asked([prompt], body.max_output_tokens, body.form, tools=tools)
        temperature, top_p = randomness(body, model)
        repeated = {**body.repeated(), "temperature": temperature, "top_p": top_p}
        return await _answer(request, body, asked, partial(ResponseAnswer, repeated=repeated))


@router.post("/v1/responses/input_tokens")
async def input_tokens(request: Request, body: ResponsesRequest) -> dict[str, Any]:
    """Count the tokens that the model would read to answer the same body."""
    service = _service(request)
    model, engine = service.language_for(body.model)
    most = engine.limits().max_length
    with own_names():
        tools = tools_of(model, body.offered, body.choice, body.parallel_tool_calls)
        prompt = await _read_input(service, model, body, tools, most)
        check_room(prompt, body.max_output_tokens, most, body.prompt_name)
    return {"object": "response.input_tokens", "input_tokens": len(prompt)}


async def _read_input(
    service: Service, model: ServedModel, body: ResponsesRequest, tools: Tools | None, most: int
) -> list[int]:
    """Return the tokens of the conversation, of as much of it as was asked for."""
    offered = tools.offered if tools else ()
    conversation = Conversation(body.messages, offered, body.chat_template_kwargs)
    if body.truncation == "auto":
        encoding = partial(encode_latest, most=most, room=body.max_output_tokens or 1)
    else:
        encoding = partial(encode_chat, most=most)
    return await service.tokenize(encoding, model, conversation)


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Return the tokens of a text or a conversation."""
    service = _service(request)
    directory = service.find(body.model)
    if body.messages is not None:
        model, _ = service.language_for(body.model)
        conversation = Conversation(body.messages, arguments=body.chat_template_kwargs)
        tokens = await service.tokenize(encode_chat, model, conversation)
    else:
        tokens = await service.tokenize(
            lambda: directory.encode(body.prompt or "", special=body.add_special_tokens)
        )
    return JSONResponse({"tokens": tokens, "count": len(tokens)})


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeRequest) -> dict[str, str]:
    """Return the text of tokens."""
    service = _service(request)
    directory = service.find(body.model)
    check_tokens(body.tokens, len(directory.tokenizer), "tokens")
    return {"prompt": await service.tokenize(directory.decode, body.tokens)}


@router.post("/v1/embeddings")
async def embeddings(request: Request, body: EmbeddingsRequest) -> Response:
    """Return a vector for each text."""
    service = _service(request)
    directory, encoder = service.encoder_for(body.model)
    rows = await service.tokens(directory, body.texts, directory.longest, "input")
    check_rows(rows, encoder.limits(), directory.longest, body.dimensions)
    work = encoder.embed(rows, service.settings.deadline)
    vectors = await unless_disconnected(request.receive, work)
    tokens = sum(map(len, rows))
    return JSONResponse(embeddings_answer(directory.name, vectors, tokens, body))


@dataclass
class _Asked:
    """What the interfaces have in common: prompts to continue."""

    prompts: list[list[int]]
    limit: int | None  # max number of tokens to generate for each; None: to the context's end
    form: ResponseFormat | None
    n: int = 1
    echoes: Sequence[str | list[int]] = ("",)  # what each answer begins with
    tools: Tools | None = None


def _listed(style: Style, body: ChoicesRequest) -> Callable[..., Answer]:
    return partial(ChoicesAnswer, style=style, with_usage=body.wants_usage)


async def _answer(
    request: Request, body: Generation, asked: _Asked, made: Callable[..., Answer]
) -> Response:
    service = _service(request)
    model, engine = service.language_for(body.model)
    limits = engine.limits()
    guidance = guidance_for(model, asked.tools, asked.form)
    if guidance is not None and service.grammars is not None:
        check = service.grammars.check(guidance, service.settings.deadline)
        await unless_disconnected(request.receive, check)
    options = [
        sampling_options(
            body,
            model,
            limits,
            prompt,
            asked.limit,
            guidance,
            service.settings.prompt_lookup_num_tokens,
            asked.n,
        )
        for prompt in asked.prompts
    ]
    streams = engine.submit(
        [prompt for prompt in asked.prompts for _ in range(asked.n)],
        [sampling for of_prompt in options for sampling in of_prompt],
        service.settings.deadline,
        model.adapter,
    )
    echoes = [echo if isinstance(echo, str) else model.decode(echo) for echo in asked.echoes]
    choices = [
        Choice(
            index,
            stream,
            model,
            body.stop_strings,
            asked.tools,
            echoes[index // asked.n],
            body.scores is not None,
        )
        for index, stream in enumerate(streams)
    ]
    answer = made(
        identifier=request.state.request_id,
        model=model.name,
        prompt_tokens=sum(map(len, asked.prompts)),
        choices=Choices(choices),
        of_prompt=asked.n,
    )
    streamed = False
    try:
        if guidance is not None:  # which the engine may refuse, with a status
            await unless_disconnected(request.receive, _accepted(streams))
        if body.stream:
            streamed = True
            return EventStream(answer, service.metrics)
        return JSONResponse(await unless_disconnected(request.receive, answer.whole()))
    finally:
        for stream in [] if streamed else streams:
            stream.close()


async def _accepted(streams: list[Stream]) -> None:
    await asyncio.gather(*(stream.accepted() for stream in streams))


def _card(service: Service, directory: ServedDirectory) -> dict[str, Any]:
    longest, base = None, None
    if isinstance(directory, ServedModel) and directory.adapter is not None:
        base = service.directories[0].name
    if isinstance(directory, ServedEncoder):
        longest = directory.longest
    elif service.language is not None and service.language[1].ready:
        longest = service.language[1].limits().max_length
    return {
        "id": directory.name,
        "object": "model",
        "created": service.created,
        "owned_by": "onnxruntime-npu",
        "parent": base,  # of an adapter: the model that it changes
        "max_model_len": longest,
    }

"""The paths of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from .answers import CHAT, COMPLETION, Answer, EventStream, Style
from .api_errors import ApiError
from .chat import encode_chat
from .choices import Choice
from .disconnection import ClientGone, unless_disconnected
from .engine import Engine, Stream
from .engine_messages import Ready
from .metrics import Metrics
from .sampling_options import sampling_options
from .schemas import ChatRequest, CompletionRequest, Generation, TokenizeRequest
from .served_model import ServedModel
from .settings import Settings
from .tools import Tools, guidance_for, tools_of

router = APIRouter()
# OpenAI's default for completions; a chat goes on to its end.
_COMPLETION_TOKENS = 16


@dataclass
class Service:
    """What the paths work with."""

    settings: Settings
    model: ServedModel
    engine: Engine
    metrics: Metrics
    created: int = field(default_factory=lambda: int(time.time()))
    # Long prompts take long to encode: not on the event loop, and one after the other.
    encoder: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "encoder"))

    def limits(self) -> Ready:
        """Return the limits of the running engine; 503 if it is not ready."""
        return self.engine.ready_limits()

    async def encode(self, function: Any, *arguments: Any) -> list[int]:
        """Run a function that encodes."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.encoder, function, *arguments)

    def check_model(self, name: str | None) -> None:
        """Refuse requests for another model."""
        if name is not None and name != self.model.name:
            message = f"expected the model {self.model.name!r}, got {name!r}"
            raise ApiError(404, "model_not_found", message, param="model")


def _service(request: Request) -> Service:
    return request.app.state.service


@router.get("/health")
async def health() -> dict[str, str]:
    """Answer as long as the server lives."""
    return {"status": "alive"}


@router.get("/ready")
async def ready(request: Request) -> dict[str, str]:
    """Answer 200 when requests are served, after the warm-up."""
    _service(request).limits()
    return {"status": "ready"}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return counters for Prometheus."""
    return Response(_service(request).metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """List the model."""
    return {"object": "list", "data": [_card(_service(request))]}


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Describe the model."""
    service = _service(request)
    service.check_model(name)
    return _card(service)


@router.post("/v1/completions")
async def completions(request: Request, body: CompletionRequest) -> Response:
    """Continue prompts."""
    service = _service(request)
    service.check_model(body.model)
    prompts = [
        await service.encode(service.model.encode, prompt) if isinstance(prompt, str) else prompt
        for prompt in body.prompts
    ]
    echoes = body.prompts if body.echo else [""] * len(prompts)
    limit = body.max_tokens or _COMPLETION_TOKENS
    return await _answer(request, body, _Asked(COMPLETION, prompts, limit, echoes))


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Continue a conversation."""
    service = _service(request)
    service.check_model(body.model)
    tools = tools_of(service.model, body.tools or [], body.tool_choice, body.parallel_tool_calls)
    offered = tools.offered if tools else ()
    prompt = await service.encode(encode_chat, service.model, body.messages, offered)
    return await _answer(request, body, _Asked(CHAT, [prompt], body.limit, [""], tools))


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeRequest) -> dict[str, Any]:
    """Return the tokens of a text or a conversation."""
    service = _service(request)
    service.check_model(body.model)
    if body.messages is not None:
        tokens = await service.encode(encode_chat, service.model, body.messages)
    else:
        tokens = await service.encode(
            lambda: service.model.encode(body.prompt or "", special=body.add_special_tokens)
        )
    return {"tokens": tokens, "count": len(tokens)}


@dataclass
class _Asked:
    """What the two interfaces have in common: prompts to continue."""

    style: Style
    prompts: list[list[int]]
    limit: int | None  # max number of tokens to generate for each; None: to the context's end
    echoes: Sequence[str | list[int]]  # what each answer begins with
    tools: Tools | None = None


async def _answer(request: Request, body: Generation, asked: _Asked) -> Response:
    service = _service(request)
    limits = service.limits()
    guidance = guidance_for(service.model, asked.tools, body.response_format)
    options = [
        sampling_options(body, service.model, limits, prompt, asked.limit, guidance)
        for prompt in asked.prompts
    ]
    streams = service.engine.submit(
        [prompt for prompt in asked.prompts for _ in range(body.n)],
        [sampling for of_prompt in options for sampling in of_prompt],
        service.settings.deadline,
    )
    echoes = [
        echo if isinstance(echo, str) else service.model.decode(echo) for echo in asked.echoes
    ]
    answer = Answer(
        asked.style,
        request.state.request_id,
        service.model.name,
        sum(map(len, asked.prompts)),
        [
            Choice(
                index,
                stream,
                service.model,
                body.stop_strings,
                asked.tools,
                echoes[index // body.n],
            )
            for index, stream in enumerate(streams)
        ],
    )
    streamed = False
    try:
        if guidance is not None:  # which the engine may refuse, with a status
            await unless_disconnected(request.receive, _accepted(streams))
        if body.stream:
            streamed = True
            return EventStream(answer, body.wants_usage, service.metrics)
        return JSONResponse(await unless_disconnected(request.receive, answer.whole()))
    except ClientGone:
        service.metrics.cancelled.inc()
        return Response(status_code=499)  # nobody reads it
    finally:
        for stream in [] if streamed else streams:
            stream.close()


async def _accepted(streams: list[Stream]) -> None:
    await asyncio.gather(*(stream.accepted() for stream in streams))


def _card(service: Service) -> dict[str, Any]:
    limits = service.engine.limits
    return {
        "id": service.model.name,
        "object": "model",
        "created": service.created,
        "owned_by": "onnxruntime-npu",
        "max_model_len": limits and limits.max_length,
    }

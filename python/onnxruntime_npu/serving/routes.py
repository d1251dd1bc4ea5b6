"""The paths of the service."""

from __future__ import annotations

import asyncio
import time
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
from .engine import Engine
from .engine_messages import Ready
from .metrics import Metrics
from .sampling_options import sampling_options
from .schemas import ChatRequest, CompletionRequest, Generation, TokenizeRequest
from .served_model import ServedModel
from .settings import Settings

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
    limit = body.max_tokens or _COMPLETION_TOKENS
    return await _answer(request, body, COMPLETION, prompts, limit)


@router.post("/v1/chat/completions")
async def chat_completions(request: Request, body: ChatRequest) -> Response:
    """Continue a conversation."""
    service = _service(request)
    service.check_model(body.model)
    prompt = await service.encode(encode_chat, service.model, body.messages)
    return await _answer(request, body, CHAT, [prompt], body.limit)


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


async def _answer(
    request: Request, body: Generation, style: Style, prompts: list[list[int]], limit: int | None
) -> Response:
    service = _service(request)
    limits = service.limits()
    options = [sampling_options(body, service.model, limits, prompt, limit) for prompt in prompts]
    streams = service.engine.submit(
        [prompt for prompt in prompts for _ in range(body.n)],
        [sampling for of_prompt in options for sampling in of_prompt],
        service.settings.deadline,
    )
    answer = Answer(
        style,
        request.state.request_id,
        service.model.name,
        sum(map(len, prompts)),
        [
            Choice(index, stream, service.model, body.stop_strings)
            for index, stream in enumerate(streams)
        ],
    )
    if body.stream:
        return EventStream(answer, body.wants_usage, service.metrics)
    try:
        return JSONResponse(await unless_disconnected(request.receive, answer.whole()))
    except ClientGone:
        service.metrics.cancelled.inc()
        return Response(status_code=499)  # nobody reads it
    finally:
        for stream in streams:
            stream.close()


def _card(service: Service) -> dict[str, Any]:
    limits = service.engine.limits
    return {
        "id": service.model.name,
        "object": "model",
        "created": service.created,
        "owned_by": "onnxruntime-npu",
        "max_model_len": limits and limits.max_length,
    }

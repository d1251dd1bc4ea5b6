"""Answers in OpenAI's shape: whole, or as a stream of server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .api_errors import ApiError
from .choices import Choice, interleaved
from .disconnection import ClientGone, unless_disconnected
from .metrics import Metrics

# The two interfaces differ in the name of their objects and in where a choice has its text.
# (text, finish_reason) to a choice of an answer, or of an event of a stream.
Shape = Callable[[str, "str | None"], "dict[str, Any]"]


@dataclass(frozen=True)
class Style:
    """How an interface writes its answers."""

    prefix: str  # of identifiers
    whole_object: str
    event_object: str
    whole: Shape
    event: Shape
    first_event: dict[str, Any] | None = None  # of each choice, before its text


COMPLETION = Style(
    prefix="cmpl-",
    whole_object="text_completion",
    event_object="text_completion",
    whole=lambda text, reason: {"text": text, "finish_reason": reason, "logprobs": None},
    event=lambda text, reason: {"text": text, "finish_reason": reason, "logprobs": None},
)
CHAT = Style(
    prefix="chatcmpl-",
    whole_object="chat.completion",
    event_object="chat.completion.chunk",
    whole=lambda text, reason: {
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": reason,
        "logprobs": None,
    },
    event=lambda text, reason: {
        "delta": {"content": text} if text else {},
        "finish_reason": reason,
        "logprobs": None,
    },
    first_event={"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
)


@dataclass
class Answer:
    """The choices of one request, and what all its events have in common."""

    style: Style
    identifier: str
    model: str
    prompt_tokens: int
    choices: Sequence[Choice]
    created: int = field(default_factory=lambda: int(time.time()))

    async def whole(self) -> dict[str, Any]:
        """Return the answer when all choices have ended."""
        texts: list[list[str]] = [[] for _ in self.choices]
        async with aclosing(interleaved(self.choices)) as pieces:
            async for choice, piece in pieces:
                texts[choice.index].append(piece or "")
        choices = [
            {"index": c.index, **self.style.whole("".join(texts[c.index]), c.finish_reason)}
            for c in self.choices
        ]
        return self._object(self.style.whole_object, choices, usage=self._usage())

    async def events(self, with_usage: bool) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the parts of the answer; ``with_usage``: and the numbers of tokens."""
        # With usage asked for, OpenAI's events all have the field.
        extra = {"usage": None} if with_usage else {}
        if self.style.first_event is not None:
            for choice in self.choices:
                yield self._event({"index": choice.index, **self.style.first_event}, extra)
        async with aclosing(interleaved(self.choices)) as pieces:
            async for choice, piece in pieces:
                reason = choice.finish_reason if piece is None else None
                shaped = self.style.event(piece or "", reason)
                yield self._event({"index": choice.index, **shaped}, extra)
        if with_usage:
            yield self._object(self.style.event_object, [], usage=self._usage())

    def _event(self, choice: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        return self._object(self.style.event_object, [choice], **extra)

    def _object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": f"{self.style.prefix}{self.identifier}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }

    def _usage(self) -> dict[str, int]:
        generated = sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
        }


class EventStream(Response):
    """Sends an answer as server-sent events, until it ends or the client goes away."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, with_usage: bool, metrics: Metrics) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._answer, self._with_usage, self._metrics = answer, with_usage, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the response over ASGI."""
        try:
            await unless_disconnected(receive, self._send(send))
        except (ClientGone, OSError):
            self._metrics.cancelled.inc()
        finally:
            for choice in self._answer.choices:
                choice.close()

    async def _send(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        try:
            async with aclosing(self._answer.events(self._with_usage)) as events:
                async for event in events:
                    await send(_body(json.dumps(event), more=True))
            await send(_body("[DONE]", more=False))
        except ApiError as error:  # too late for a status
            self._metrics.errors.labels(error.code).inc()
            await send(_body(json.dumps(error.body()), more=False))


def _body(data: str, *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": more}

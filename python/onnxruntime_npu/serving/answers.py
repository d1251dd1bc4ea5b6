"""Answers in OpenAI's shape: whole, or as a stream of server-sent events."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .api_errors import ApiError
from .choices import Choice, Part, interleaved
from .disconnection import ClientGone, unless_disconnected
from .logprobs import PlacedToken, chat_logprobs, completion_logprobs
from .metrics import Metrics
from .tool_calls import ToolCall


class Style(ABC):
    """How an interface writes its answers: names of its objects, and where a choice has its text.

    ``first_event`` is that of each choice, before its parts; None: there is none.
    """

    prefix: str  # of identifiers
    whole_object: str
    event_object: str
    first_event: ClassVar[dict[str, Any] | None] = None

    @abstractmethod
    def whole(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return what a choice of an answer has of its parts."""

    @abstractmethod
    def event(self, part: Part | None) -> dict[str, Any]:
        """Return what an event of a stream has of a part; None: the last event."""

    @abstractmethod
    def logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any]:
        """Return the log-probabilities of tokens."""


class _Completion(Style):
    prefix = "cmpl-"
    whole_object = event_object = "text_completion"

    def whole(self, parts: Sequence[Part]) -> dict[str, Any]:
        return {"text": _text(parts)}

    def event(self, part: Part | None) -> dict[str, Any]:
        return {"text": _text([part] if part else [])}

    def logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any]:
        return completion_logprobs(tokens)


class _Chat(Style):
    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"
    first_event: ClassVar[dict[str, Any] | None] = {"delta": {"role": "assistant", "content": ""}}

    def whole(self, parts: Sequence[Part]) -> dict[str, Any]:
        calls = [_call(part) for part in parts if isinstance(part, ToolCall)]
        text = _text(parts)
        message = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None}
        return {"message": {**message, "tool_calls": calls} if calls else message}

    def event(self, part: Part | None) -> dict[str, Any]:
        if isinstance(part, ToolCall):
            return {"delta": {"tool_calls": [{"index": part.index, **_call(part)}]}}
        return {"delta": {"content": part} if part else {}}

    def logprobs(self, tokens: Sequence[PlacedToken]) -> dict[str, Any]:
        return chat_logprobs(tokens)


COMPLETION = _Completion()
CHAT = _Chat()


def _text(parts: Sequence[Part]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.identifier, "type": "function", "function": function}


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
        of_each: list[list[Part]] = [[] for _ in self.choices]
        scores: list[list[PlacedToken]] = [[] for _ in self.choices]
        async with aclosing(interleaved(self.choices)) as arrivals:
            async for arrival in arrivals:
                scores[arrival.choice.index] += arrival.scores
                if arrival.part is not None:
                    of_each[arrival.choice.index].append(arrival.part)
        choices = [
            _choice(
                c.index,
                self.style.whole(of_each[c.index]),
                c.finish_reason,
                self.style.logprobs(scores[c.index]) if c.scored else None,
            )
            for c in self.choices
        ]
        return self._object(self.style.whole_object, choices, usage=self._usage())

    async def events(self, with_usage: bool) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the parts of the answer; ``with_usage``: and the numbers of tokens."""
        # With usage asked for, OpenAI's events all have the field.
        extra = {"usage": None} if with_usage else {}
        if self.style.first_event is not None:
            for choice in self.choices:
                yield self._event(_choice(choice.index, self.style.first_event, None), extra)
        async with aclosing(interleaved(self.choices)) as arrivals:
            async for arrival in arrivals:
                choice, part = arrival.choice, arrival.part
                reason = choice.finish_reason if part is None else None
                logprobs = self.style.logprobs(arrival.scores) if arrival.scores else None
                content = _choice(choice.index, self.style.event(part), reason, logprobs)
                yield self._event(content, extra)
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


def _choice(
    index: int,
    content: dict[str, Any],
    reason: str | None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}


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

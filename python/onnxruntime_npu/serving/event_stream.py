"""An answer to a request, and how it is sent as server-sent events."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .api_errors import ApiError
from .choices import Choices
from .disconnection import ClientGone, unless_disconnected
from .metrics import Metrics


@dataclass(kw_only=True)
class Answer(ABC):
    """The choices of one request, and what an interface says of them.

    ``of_prompt``: choices that follow each prompt; they share its tokens. ``end`` is sent behind
    the last event of a stream that nothing has broken off.
    """

    end: ClassVar[bytes] = b""
    identifier: str
    model: str
    prompt_tokens: int
    choices: Choices
    of_prompt: int = 1
    created: int = field(default_factory=lambda: int(time.time()))

    @abstractmethod
    async def whole(self) -> dict[str, Any]:
        """Return the answer when all choices have ended."""

    @abstractmethod
    async def send_events(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the answer as server-sent events, those together that come together."""

    @abstractmethod
    def failure(self, error: ApiError) -> bytes:
        """Return the last events of a stream that an error breaks off."""

    @property
    def generated(self) -> int:
        """The number of tokens of all choices so far."""
        return sum(choice.tokens for choice in self.choices.each)

    @property
    def cached(self) -> int | None:
        """How many tokens of the prompts the cache had; None: the engine has not told.

        The first choice of a prompt is the one that reads it; the others find it in the cache.
        """
        total = 0
        for choice in self.choices.each[:: self.of_prompt]:
            if choice.cached is None:
                return None
            total += choice.cached
        return total


class EventStream(Response):
    """Sends an answer as server-sent events, until it ends or the client goes away."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, metrics: Metrics) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._answer, self._metrics = answer, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the response over ASGI."""
        try:
            await unless_disconnected(receive, self._send(send))
        except (ClientGone, OSError):
            self._metrics.cancelled.inc()
        finally:
            self._answer.choices.close()

    async def _send(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )

        async def send_more(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        try:
            await self._answer.send_events(send_more)
            end = self._answer.end
        except ApiError as error:  # too late for a status
            self._metrics.errors.labels(error.code).inc()
            end = self._answer.failure(error)
        await send({"type": "http.response.body", "body": end, "more_body": False})


def sent_event(event: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return f"data: {json.dumps(event)}\n\n".encode()

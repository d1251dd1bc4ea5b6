"""Answers of /v1/responses: items of output, whole, or as a stream of typed events."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .api_errors import ApiError
from .choices import Part
from .event_stream import Answer
from .logprobs import PlacedToken, chat_logprobs
from .responses_request import own_name
from .tool_calls import ToolCall

Event = dict[str, Any]


class _Output:
    """The items of an answer, made of its parts; each change is told as events of a stream.

    Text is a message, up to the next call. An item is complete when the next one begins, so that
    only the last one can be cut off.
    """

    def __init__(self, identifier: str) -> None:
        self.items: list[dict[str, Any]] = []
        self._identifier = identifier
        self._pieces: list[str] = []  # of the text of the last item
        self._scores: list[dict[str, Any]] = []

    def put(self, part: Part, scores: Sequence[PlacedToken]) -> Iterator[Event]:
        """Take a part."""
        if isinstance(part, ToolCall):
            yield from self._finish("completed")
            yield from self._begin_call(part)
            return
        if not self._in_message:
            yield from self._finish("completed")
            yield from self._begin_message()
        logprobs = self._scored(scores)
        self._pieces.append(part)
        yield self._event(
            "response.output_text.delta", content_index=0, delta=part, logprobs=logprobs
        )

    def end(self, status: str, scores: Sequence[PlacedToken]) -> Iterator[Event]:
        """Note that no part follows; an answer of nothing is a message without text."""
        if not self.items:
            yield from self._begin_message()
        if self._in_message:
            self._scored(scores)
        yield from self._finish(status)

    @property
    def _in_message(self) -> bool:
        return bool(self.items) and self.items[-1]["type"] == "message"

    def _begin_message(self) -> Iterator[Event]:
        self._pieces, self._scores = [], []
        yield self._add("msg", type="message", role="assistant", content=[])
        yield self._event("response.content_part.added", content_index=0, part=self._text())

    def _begin_call(self, call: ToolCall) -> Iterator[Event]:
        self._pieces = [call.arguments]
        what = {"call_id": call.identifier, "name": call.name, "arguments": ""}
        yield self._add("fc", type="function_call", **what)
        yield self._event("response.function_call_arguments.delta", delta=call.arguments)

    def _add(self, prefix: str, **what: Any) -> Event:
        identifier = f"{prefix}_{self._identifier}_{len(self.items)}"
        self.items.append({"id": identifier, "status": "in_progress", **what})
        return self._of_item("response.output_item.added")

    def _finish(self, status: str) -> Iterator[Event]:
        if not self.items:
            return
        item = self.items[-1]
        text = "".join(self._pieces)
        if self._in_message:
            part = self._text()
            scores = part["logprobs"]
            yield self._event(
                "response.output_text.done", content_index=0, text=text, logprobs=scores
            )
            yield self._event("response.content_part.done", content_index=0, part=part)
            item = {**item, "content": [part]}
        else:
            yield self._event(
                "response.function_call_arguments.done", name=item["name"], arguments=text
            )
            item = {**item, "arguments": text}
        self.items[-1] = {**item, "status": status}
        yield self._of_item("response.output_item.done")

    def _text(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._scores}

    def _scored(self, scores: Sequence[PlacedToken]) -> list[dict[str, Any]]:
        logprobs: list[dict[str, Any]] = chat_logprobs(scores)["content"] if scores else []
        self._scores += logprobs
        return logprobs

    def _of_item(self, kind: str) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, "item": self.items[-1]}

    def _event(self, kind: str, **what: Any) -> Event:
        index = len(self.items) - 1
        return {"type": kind, "item_id": self.items[-1]["id"], "output_index": index, **what}


@dataclass(kw_only=True)
class ResponseAnswer(Answer):
    """An answer of one choice; ``repeated`` is what it has of its request."""

    repeated: dict[str, Any]
    _output: _Output = field(init=False)
    _events: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._output = _Output(self.identifier)

    async def whole(self) -> dict[str, Any]:
        """Return the answer when its choice has ended."""
        (choice,) = self.choices.each
        choice.take_together()
        while arrivals := await self.choices.next():
            for _, part, scores in arrivals:
                for _ in self._told(part, scores):
                    pass
        return self._ended()

    async def send_events(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the answer as server-sent events, those together that come together."""
        begun = [
            {"type": kind, "response": self._response("in_progress")}
            for kind in ("response.created", "response.in_progress")
        ]
        await send(self._sent(begun))
        while arrivals := await self.choices.next():
            events = (event for _, part, scores in arrivals for event in self._told(part, scores))
            if sent := self._sent(events):
                await send(sent)
        response = self._ended()
        await send(self._sent([{"type": f"response.{response['status']}", "response": response}]))

    def failure(self, error: ApiError) -> bytes:
        """Return the last events of a stream that an error breaks off.

        The first says so in the terms of the stream. OpenAI's client raises an error of the second.
        """
        told = {**error.body()["error"], "param": own_name(error.param)}
        failed = self._response("failed")
        failed["error"] = {"code": "server_error", "message": error.detail}
        members = {name: told[name] for name in ("code", "message", "param")}
        return self._sent(
            [
                {"type": "response.failed", "response": failed},
                {"type": "error", **members, "error": told},
            ]
        )

    def _told(self, part: Part | None, scores: Sequence[PlacedToken]) -> Iterator[Event]:
        if part is None:
            return self._output.end(self._status, scores)
        return self._output.put(part, scores)

    @property
    def _status(self) -> str:
        return "incomplete" if self.choices.each[0].finish_reason == "length" else "completed"

    def _ended(self) -> dict[str, Any]:
        response = self._response(self._status)
        if self._status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = int(time.time())
        response["usage"] = {
            "input_tokens": self.prompt_tokens,
            # A client reads these as numbers: what the engine has not told is none.
            "input_tokens_details": {"cached_tokens": self.cached or 0, "cache_write_tokens": 0},
            "output_tokens": self.generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.prompt_tokens + self.generated,
        }
        return response

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": f"resp_{self.identifier}",
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            "output": self._output.items,
            "usage": None,
            **self.repeated,
        }

    def _sent(self, events: Iterable[Event]) -> bytes:
        sent = []
        for event in events:
            numbered = {**event, "sequence_number": self._events}
            self._events += 1
            sent.append(f"event: {event['type']}\ndata: {json.dumps(numbered)}\n\n")
        return "".join(sent).encode()

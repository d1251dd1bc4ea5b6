"""Answers of completions and chats, in OpenAI's shape."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .api_errors import ApiError
from .choices import Part
from .event_stream import Answer, sent_event
from .logprobs import PlacedToken, chat_logprobs, completion_logprobs
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


# Stands for a text: neither identifiers nor names of models have this character.
_PLACE = "\0"
_json_text = json.encoder.encode_basestring_ascii  # what json.dumps does with a text

COMPLETION = _Completion()
CHAT = _Chat()


def _text(parts: Sequence[Part]) -> str:
    return "".join(part for part in parts if isinstance(part, str))


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.identifier, "type": "function", "function": function}


@dataclass(kw_only=True)
class ChoicesAnswer(Answer):
    """An answer that lists its choices; ``with_usage``: its stream ends with numbers of tokens."""

    end: ClassVar[bytes] = b"data: [DONE]\n\n"
    style: Style
    with_usage: bool

    async def whole(self) -> dict[str, Any]:
        """Return the answer when all choices have ended."""
        each = self.choices.each
        of_each: list[list[Part]] = [[] for _ in each]
        scores: list[list[PlacedToken]] = [[] for _ in each]
        for choice in each:
            choice.take_together()
        while arrivals := await self.choices.next():
            for choice, part, scored in arrivals:
                scores[choice.index] += scored
                if part is not None:
                    of_each[choice.index].append(part)
        choices = [
            _choice(
                c.index,
                self.style.whole(of_each[c.index]),
                c.finish_reason,
                self.style.logprobs(scores[c.index]) if c.scored else None,
            )
            for c in each
        ]
        return self._object(self.style.whole_object, choices, usage=self._usage())

    async def send_events(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the answer as server-sent events, those together that come together."""
        # With usage asked for, OpenAI's events all have the field.
        extra = {"usage": None} if self.with_usage else {}
        each = self.choices.each
        if (first := self.style.first_event) is not None:
            begin = (self._event(_choice(choice.index, first, None), extra) for choice in each)
            await send(b"".join(map(sent_event, begin)))
        around = {choice.index: self._around_text(choice.index, extra) for choice in each}
        while arrivals := await self.choices.next():
            events = []
            for choice, part, scores in arrivals:
                if isinstance(part, str) and not scores:
                    before, after = around[choice.index]
                    events.append(before + _json_text(part).encode() + after)
                    continue
                reason = choice.finish_reason if part is None else None
                logprobs = self.style.logprobs(scores) if scores else None
                content = _choice(choice.index, self.style.event(part), reason, logprobs)
                events.append(sent_event(self._event(content, extra)))
            await send(events[0] if len(events) == 1 else b"".join(events))
        if self.with_usage:
            await send(sent_event(self._object(self.style.event_object, [], usage=self._usage())))

    def failure(self, error: ApiError) -> bytes:
        """Return the last event of a stream that an error breaks off."""
        return sent_event(error.body())

    def _around_text(self, index: int, extra: dict[str, Any]) -> tuple[bytes, bytes]:
        """Return what a choice's events of text have before and after it: always the same."""
        event = self._event(_choice(index, self.style.event(_PLACE), None), extra)
        begin, _, end = sent_event(event).partition(json.dumps(_PLACE).encode())
        return begin, end

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

    def _usage(self) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt_tokens + self.generated,
        }
        if (cached := self.cached) is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage


def _choice(
    index: int,
    content: dict[str, Any],
    reason: str | None,
    logprobs: dict[str, Any] | None = None,
) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": reason}

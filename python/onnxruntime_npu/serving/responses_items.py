"""Items of a conversation as /v1/responses has them, and the messages that they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from .api_errors import ApiError, shown
from .messages import Message, RefusalPart, TopBody, read_only_text
from .texts import FIRST_ERROR, TEXT_OR_LIST

_KINDS = ("message", "function_call", "function_call_output")
_INSTEAD = {
    "item_reference": "nothing is stored here: send the item itself",
    "reasoning": "leave it out: the models here write their reasoning, if any, as text",
}


class _Text(TopBody):
    """Text of a message; what an answer has beside it is sent back with it."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None
    prompt_cache_breakpoint: dict[str, Any] | None = None


_Part = Annotated[_Text | RefusalPart, Field(discriminator="type"), BeforeValidator(read_only_text)]
_Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[_Part], FIRST_ERROR, Tag("list")], TEXT_OR_LIST
]


class _Item(TopBody):
    """What each item may have; neither changes what the model reads."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class MessageItem(_Item):
    """A message, which a client that writes one itself need not call so."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Content
    phase: Literal["commentary", "final_answer"] | None = None

    def add_to(self, messages: list[dict[str, Any]]) -> None:
        """Add it to messages of a chat."""
        messages.append({"role": self.role, "content": _chat_content(self.content)})


class CallItem(_Item):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    parsed_arguments: Any = None

    def add_to(self, messages: list[dict[str, Any]]) -> None:
        """Add it to messages of a chat, where text and calls of an answer are one message."""
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant"})
        call = {"id": self.call_id, "function": {"name": self.name, "arguments": self.arguments}}
        messages[-1].setdefault("tool_calls", []).append(call)


class ResultItem(_Item):
    """What a called function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: _Content
    name: str | None = None

    def add_to(self, messages: list[dict[str, Any]]) -> None:
        """Add it to messages of a chat."""
        content = _chat_content(self.output)
        messages.append({"role": "tool", "tool_call_id": self.call_id, "content": content})


def _chat_content(content: str | list[_Text | RefusalPart]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text} if isinstance(part, _Text) else part.model_dump()
        for part in content
    ]


def _kind(given: Any) -> str:
    return given.get("type") or "message" if isinstance(given, dict) else "message"


def _known_kind(given: Any) -> Any:
    if (kind := _kind(given)) not in _KINDS:
        expected = f"expected items of the types {', '.join(_KINDS)}, got {shown(str(kind))!r}"
        message = f"{expected}: {_INSTEAD.get(str(kind), 'the models here read nothing else')}"
        raise ApiError(400, "unsupported_parameter", message, param="input")
    return given


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[ResultItem, Tag("function_call_output")],
    Discriminator(_kind),
    BeforeValidator(_known_kind),
]


def chat_messages(instructions: str | None, given: str | Sequence[Item]) -> list[Message]:
    """Return the messages of a chat that instructions and an input are.

    Raises a 400 for those that cannot be meant.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        for item in given:
            item.add_to(messages)
    return [Message.model_validate(message) for message in messages]

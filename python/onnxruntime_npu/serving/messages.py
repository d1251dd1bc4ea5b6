"""Messages of a conversation as clients send them, and as chat templates read them."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from .api_errors import bad_request


class Body(BaseModel):
    """A part of a request's body: unknown fields and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TopBody(Body):
    """The body of a request."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_half_characters(cls, body: Any) -> Any:
        if not isinstance(body, dict):  # not sent as JSON, perhaps: refused for that
            return body
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            message = "the body has half of a surrogate pair, which is no character"
            raise bad_request(message) from None
        return body


class TextPart(Body):
    """A part of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(Body):
    """Name and arguments, which are JSON in a string."""

    name: str
    arguments: str


class CalledTool(Body):
    """A call that an earlier answer made; clients that put a stream together leave its index."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(Body):
    """One message of a conversation.

    Answers are sent back as OpenAI's client has them, with fields that are empty in ours.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise bad_request(f"expected content in a message of {self.role}", param="messages")
        if self.tool_calls and self.role != "assistant":
            raise bad_request(f"expected no tool_calls of {self.role}", param="messages")
        if (self.role == "tool") != (self.tool_call_id is not None):
            message = "expected tool_call_id in messages of tool, and in no others"
            raise bad_request(message, param="messages")
        return self


def plain_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Return the messages as chat templates read them.

    Raises a 400 for results of calls that were not made.
    """
    names: dict[str, str] = {}
    plain = []
    for message in messages:
        content = message.content or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        one: dict[str, Any] = {"role": message.role, "content": content}
        if message.name is not None:
            one["name"] = message.name
        if message.tool_calls:
            one["tool_calls"] = [_plain_call(call) for call in message.tool_calls]
            names.update((call.id, call.function.name) for call in message.tool_calls)
        if message.tool_call_id is not None:
            if message.tool_call_id not in names:
                text = f"no earlier message calls a tool with the id {message.tool_call_id!r}"
                raise bad_request(text, param="messages")
            one["tool_call_id"] = message.tool_call_id
            one.setdefault("name", names[message.tool_call_id])
        plain.append(one)
    return plain


def _plain_call(call: CalledTool) -> dict[str, Any]:
    # Templates write the arguments as JSON themselves.
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        message = f"expected arguments of {call.function.name!r} as a JSON object in a string"
        raise bad_request(message, param="messages")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}

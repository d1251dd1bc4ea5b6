"""Messages of a conversation as clients send them, and as chat templates read them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Tag, model_validator

from .api_errors import bad_request, shown
from .texts import FIRST_ERROR, TEXT_OR_LIST

_MOST_MEMBERS = 100  # more than there are parameters
# Of OpenAI's interface, and of others that have taken after it.
_OTHER_PARTS = (
    *("image_url", "input_audio", "file", "video_url", "audio_url", "image", "video"),
    *("input_image", "input_file"),  # of /v1/responses
)


class Body(BaseModel):
    """A part of a request's body: unknown fields and other types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_many_members(cls, given: Any) -> Any:
        # Each unknown one would be an error of its own.
        if isinstance(given, dict) and len(given) > _MOST_MEMBERS:
            raise bad_request(
                f"expected objects of at most {_MOST_MEMBERS} members, got one of {len(given)}"
            )
        return given


class TopBody(Body):
    """The body of a request, in which null is a parameter that is left out, as OpenAI has it."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_null(cls, body: Any) -> Any:
        if not isinstance(body, dict):  # not sent as JSON, perhaps: refused for that
            return body
        return {name: value for name, value in body.items() if value is not None}


class TextPart(Body):
    """A part of a message; where a cache should divide it does not change the answer."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None  # of LiteLLM


class RefusalPart(Body):
    """A part of an earlier answer, by which the model refused to go on."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """What the model wrote."""
        return self.refusal


def read_only_text(given: Any) -> Any:
    """Refuse parts that other models read, in words that say more than the names of ours."""
    if isinstance(given, dict) and (kind := given.get("type")) in _OTHER_PARTS:
        message = f"expected parts of text, got {kind}: the models here read and write text only"
        raise bad_request(message, param="messages")
    return given


Part = Annotated[
    TextPart | RefusalPart, Field(discriminator="type"), BeforeValidator(read_only_text)
]
Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Part], FIRST_ERROR, Tag("list")], TEXT_OR_LIST
]


class CalledFunction(Body):
    """Name and arguments, which are JSON in a string; OpenAI's client adds what it read of them."""

    name: str
    arguments: str
    parsed_arguments: Any = None


class CalledTool(Body):
    """A call that an earlier answer made; clients that put a stream together leave its index."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(Body):
    """One message of a conversation.

    Answers are sent back as OpenAI's client has them: with fields that are empty in ours, and with
    what it read of the content.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[CalledTool], FIRST_ERROR] | None = None
    tool_call_id: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    parsed: Any = None
    refusal: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Message:
        if self.content is None and self.refusal is None and not self.tool_calls:
            raise bad_request(f"expected content in a message of {self.role}", param="messages")
        if self.tool_calls and self.role != "assistant":
            raise bad_request(f"expected no tool_calls of {self.role}", param="messages")
        parts = self.content if isinstance(self.content, list) else []
        refused = self.refusal is not None or any(isinstance(p, RefusalPart) for p in parts)
        if refused and self.role != "assistant":
            raise bad_request(f"expected no refusal of {self.role}", param="messages")
        if (self.role == "tool") != (self.tool_call_id is not None):
            message = "expected tool_call_id in messages of tool, and in no others"
            raise bad_request(message, param="messages")
        return self


def plain_messages(messages: list[Message], developer: str) -> list[dict[str, Any]]:
    """Return the messages as chat templates read them; a developer's are of the role ``developer``.

    Raises a 400 for results of calls that were not made.
    """
    names: dict[str, str] = {}
    plain = []
    for message in messages:
        content = message.content or message.refusal or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        role = developer if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": content}
        if message.name is not None:
            one["name"] = message.name
        if message.tool_calls:
            one["tool_calls"] = [_plain_call(call) for call in message.tool_calls]
            names.update((call.id, call.function.name) for call in message.tool_calls)
        if message.tool_call_id is not None:
            if message.tool_call_id not in names:
                identifier = shown(message.tool_call_id)
                text = f"no earlier message calls a tool with the id {identifier!r}"
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
        name = shown(call.function.name)
        message = f"expected arguments of {name!r} as a JSON object in a string"
        raise bad_request(message, param="messages")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}

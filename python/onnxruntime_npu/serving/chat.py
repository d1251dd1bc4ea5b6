"""Messages of a conversation to tokens, through the model's chat template."""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jinja2

from .api_errors import ApiError, bad_request, shown, too_long
from .messages import Message, plain_messages
from .served_model import ServedModel
from .tools import Tool


@dataclass(frozen=True)
class Conversation:
    """What the assistant is to continue; ``arguments`` are what else the template reads."""

    messages: list[Message]
    tools: Sequence[Tool] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


def encode_chat(
    model: ServedModel, conversation: Conversation, most: int | None = None
) -> list[int]:
    """Return the tokens of a conversation.

    Raises a 400 for a model without a template, for messages that the template refuses, for more
    messages than ``most``, and for a text that is surely of more tokens.
    """
    messages, tools = conversation.messages, conversation.tools
    if most is not None and len(messages) > most:  # each has a token or more
        raise too_long(most, f"{len(messages)} messages", param="messages")
    if not getattr(model.tokenizer, "chat_template", None):
        raise bad_request("the model has no chat template: use /v1/completions", param="model")
    _check_arguments(model, conversation.arguments)
    definitions = [tool.model_dump(exclude_none=True) for tool in tools] or None
    try:
        template = model.tokenizer.get_chat_template(tools=definitions)
        # Most templates leave out the messages of a role that they do not know.
        developer = "developer" if "developer" in template else "system"
        text = model.tokenizer.apply_chat_template(
            plain_messages(messages, developer),
            tools=definitions,
            add_generation_prompt=True,
            tokenize=False,
            **conversation.arguments,
        )
    except (
        *(jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError),
        *(AttributeError, RecursionError),  # the latter of what is nested too deeply
    ) as error:
        raise bad_request(
            f"the model's chat template refuses these messages: {error}", param="messages"
        ) from None
    if most is not None:
        model.check_length(text, most, "messages")
    return model.encode(text, special=False)


def _check_arguments(model: ServedModel, arguments: Mapping[str, Any]) -> None:
    """Raise a 400 for arguments that are not the template's own."""
    others = {"messages", *inspect.signature(model.tokenizer.apply_chat_template).parameters}
    if wrong := sorted(others.intersection(arguments)):
        message = f"expected values that the template reads, got {shown(wrong[0])}"
        raise bad_request(message, param="chat_template_kwargs")


def encode_latest(
    model: ServedModel, conversation: Conversation, most: int, room: int
) -> list[int]:
    """Return the tokens of as much of a conversation as leaves ``room`` of ``most`` tokens.

    The oldest turns are left out, each from a user's message to the next one's. What stands before
    the first one and the last turn always stay.
    """
    messages = conversation.messages
    begins = [i for i, message in enumerate(messages) if message.role == "user"]
    before = messages[: begins[0]] if begins else messages

    def encoded(left_out: int) -> list[int]:
        kept = messages[begins[left_out] :] if begins else []
        return encode_chat(model, replace(conversation, messages=before + kept), most)

    def fits(left_out: int) -> bool:
        try:
            return len(encoded(left_out)) <= most - room
        except ApiError as error:
            if error.code != "context_length_exceeded":
                raise
            return False

    last = max(0, len(begins) - 1)
    return encoded(bisect_left(range(last), True, key=fits))

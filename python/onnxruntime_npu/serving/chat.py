"""Messages of a conversation to tokens, through the model's chat template."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import jinja2

from .api_errors import ApiError, bad_request, too_long
from .messages import Message, plain_messages
from .served_model import ServedModel
from .tools import Tool


def encode_chat(
    model: ServedModel,
    messages: list[Message],
    tools: Sequence[Tool] = (),
    most: int | None = None,
) -> list[int]:
    """Return the tokens of a conversation that the assistant is to continue.

    Raises a 400 for a model without a template, for messages that the template refuses, for more
    messages than ``most``, and for a text that is surely of more tokens.
    """
    if most is not None and len(messages) > most:  # each has a token or more
        raise too_long(most, f"{len(messages)} messages", param="messages")
    if not getattr(model.tokenizer, "chat_template", None):
        raise bad_request("the model has no chat template: use /v1/completions", param="model")
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
        )
    except (
        *(jinja2.TemplateError, TypeError, ValueError, KeyError),
        RecursionError,  # of what is nested too deeply
    ) as error:
        raise bad_request(
            f"the model's chat template refuses these messages: {error}", param="messages"
        ) from None
    if most is not None:
        model.check_length(text, most, "messages")
    return model.encode(text, special=False)


def encode_latest(
    model: ServedModel, messages: list[Message], tools: Sequence[Tool], most: int, room: int
) -> list[int]:
    """Return the tokens of as much of a conversation as leaves ``room`` of ``most`` tokens.

    The oldest turns are left out, each from a user's message to the next one's. What stands before
    the first one and the last turn always stay.
    """
    begins = [i for i, message in enumerate(messages) if message.role == "user"]
    before = messages[: begins[0]] if begins else messages

    def encoded(left_out: int) -> list[int]:
        kept = messages[begins[left_out] :] if begins else []
        return encode_chat(model, before + kept, tools, most)

    def fits(left_out: int) -> bool:
        try:
            return len(encoded(left_out)) <= most - room
        except ApiError as error:
            if error.code != "context_length_exceeded":
                raise
            return False

    last = max(0, len(begins) - 1)
    return encoded(bisect_left(range(last), True, key=fits))

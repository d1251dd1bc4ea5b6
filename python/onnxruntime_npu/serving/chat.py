"""Messages of a conversation to tokens, through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from .api_errors import bad_request
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

    Raises a 400 for a model without a template, for messages that the template refuses, and for a
    text that is surely of more than ``most`` tokens.
    """
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

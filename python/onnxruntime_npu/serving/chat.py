"""Messages of a conversation to tokens, through the model's chat template."""

from __future__ import annotations

from typing import Any

import jinja2

from .api_errors import bad_request
from .schemas import Message
from .served_model import ServedModel


def encode_chat(model: ServedModel, messages: list[Message]) -> list[int]:
    """Return the tokens of a conversation that the assistant is to continue.

    Raises a 400 for a model without a template and for messages that the template refuses.
    """
    if not getattr(model.tokenizer, "chat_template", None):
        raise bad_request("the model has no chat template: use /v1/completions", param="model")
    conversation: list[dict[str, Any]] = [message.plain() for message in messages]
    try:
        text = model.tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=False
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
        raise bad_request(
            f"the model's chat template refuses these messages: {error}", param="messages"
        ) from None
    return model.encode(text, special=False)

"""Texts that clients give, as text or as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import (
    Discriminator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from .api_errors import bad_request

# A body has room for millions of wrong items, and an error of each takes a thousand times its room.
FIRST_ERROR = Field(fail_fast=True)
Tokens = Annotated[list[int], FIRST_ERROR]
# A value of either form is told what its own one needs: pydantic would begin with the errors of the
# first form, which say nothing of what is wrong with the second.
TEXT_OR_LIST = Discriminator(lambda given: "list" if isinstance(given, list) else "text")
TEXT_OR_OBJECT = Discriminator(lambda given: "object" if isinstance(given, dict) else "text")


def _of_one_form(given: Any, read: ValidatorFunctionWrapHandler) -> Any:
    try:
        return read(given)
    except ValidationError:  # of each form: none of them says what is expected
        raise PydanticCustomError(
            "texts", "expected a text, a list of texts, token numbers, or a list of those of each"
        ) from None


Texts = Annotated[
    str | Annotated[list[str], FIRST_ERROR] | Tokens | Annotated[list[Tokens], FIRST_ERROR],
    WrapValidator(_of_one_form),
]


def each_text(given: Texts) -> list[str] | list[list[int]]:
    """Return the texts, also if one is given alone; a list of nothing is one, of no tokens."""
    texts: Any = given
    if isinstance(given, str) or not given or isinstance(given[0], int):  # of one form each
        return [texts]
    return texts


def check_tokens(tokens: Sequence[int], vocabulary: int, param: str) -> None:
    """Raise a 400 for tokens outside [0, vocabulary); ``param`` is the one that has them."""
    for token in tokens:
        if not 0 <= token < vocabulary:
            message = f"expected tokens from 0 to {vocabulary - 1}, got {token}"
            raise bad_request(message, param=param)

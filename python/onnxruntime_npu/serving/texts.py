"""Texts that clients give, as text or as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .api_errors import bad_request

Texts = str | list[str] | list[int] | list[list[int]]


def each_text(given: Texts) -> list[str] | list[list[int]]:
    """Return the texts, also if one is given alone; a list of nothing is one, of no tokens."""
    texts: Any = given
    if isinstance(given, str) or all(isinstance(token, int) for token in given):
        return [texts]
    return texts


def check_tokens(tokens: Sequence[int], vocabulary: int, param: str | None = None) -> None:
    """Raise a 400 for tokens outside [0, vocabulary); ``param`` is the one that has them."""
    for token in tokens:
        if not 0 <= token < vocabulary:
            message = f"expected tokens from 0 to {vocabulary - 1}, got {token}"
            raise bad_request(message, param=param)

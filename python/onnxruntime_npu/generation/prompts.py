"""Prompts in the forms that users have them, to rows of token ids."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError

_FORMS = "text, token ids, or a batch of either"


def token_rows(
    prompts: Any, attention_mask: Any, encode: Callable[[str], list[int]]
) -> list[list[int]]:
    """Return the tokens of each prompt.

    Args:
        prompts: a text or texts; token ids [S]; rows of token ids of any lengths, or an array or
            tensor [B, S] of NumPy or torch; or what a tokenizer returns, with these as input_ids.
        attention_mask: for token ids, of their shape: 0 for those that are padding, on any side.
        encode: turns a text into tokens.

    Raises ArgumentError for anything else.
    """
    if isinstance(prompts, Mapping):
        prompts, attention_mask = _of_tokenizer(prompts, attention_mask)
    texts = [prompts] if isinstance(prompts, str) else prompts
    if isinstance(texts, Sequence) and texts and all(isinstance(text, str) for text in texts):
        if attention_mask is not None:
            raise ArgumentError("expected no attention_mask with texts: it belongs to token ids")
        return [encode(_checked_text(text)) for text in texts]
    rows = _rows(prompts)
    return rows if attention_mask is None else _kept(rows, attention_mask)


def _checked_text(text: str) -> str:
    """Return a text; ArgumentError for one with half of a pair of surrogates.

    Arguments of a command have such halves where they are not in UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise ArgumentError(
            f"expected text of whole characters, got {text[at]!r} at {at}"
        ) from None
    return text


def seen_tokens(rows: list[list[int]], mask: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Return rows without the tokens whose mask, of the same lengths, is 0."""
    return [
        [token for token, keep in zip(row, kept, strict=True) if keep]
        for row, kept in zip(rows, mask, strict=True)
    ]


def token_id(value: Any) -> int:
    """Return a token, also of NumPy or torch; TypeError for a bool and what is no whole number."""
    if isinstance(value, bool):
        raise TypeError("'bool' object is no token id")
    return operator.index(value)


def checked_rows(rows: Any, vocabulary: int) -> list[list[int]]:
    """Return rows of token ids; ArgumentError for empty ones and tokens outside the vocabulary."""
    try:
        checked = [[token_id(token) for token in row] for row in rows]
    except TypeError as error:
        raise ArgumentError(f"expected prompts as rows of token ids: {error}") from None
    if not checked or not all(checked):
        raise ArgumentError("expected at least one token in every prompt")
    for row in checked:
        for token in row:
            if not 0 <= token < vocabulary:
                raise ArgumentError(f"expected tokens from 0 to {vocabulary - 1}, got {token}")
    return checked


def _of_tokenizer(given: Mapping[str, Any], attention_mask: Any) -> tuple[Any, Any]:
    others = sorted(set(given) - {"input_ids", "attention_mask"})
    if "input_ids" not in given or others:
        raise ArgumentError(
            "expected input_ids and attention_mask of a tokenizer, got "
            f"{', '.join(given) or 'neither'}"
        )
    mask = given.get("attention_mask")
    return given["input_ids"], mask if attention_mask is None else attention_mask


def _rows(prompts: Any) -> list[list[int]]:
    """Return rows of ids of one row or several."""
    try:
        if isinstance(prompts, bytes | bytearray):  # whose items are numbers
            raise TypeError(f"{type(prompts).__name__!r} object is no text")
        given = [_plain(each) for each in _plain(prompts)]
        if any(isinstance(each, list | tuple) for each in given):
            return [[token_id(token) for token in row] for row in given]
        return [[token_id(token) for token in given]]
    except TypeError as error:
        raise ArgumentError(f"expected {_FORMS}, got {_shown(prompts)}: {error}") from None


def _plain(value: Any) -> Any:
    """Return the numbers of an array or tensor as lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def _kept(rows: list[list[int]], attention_mask: Any) -> list[list[int]]:
    """Return rows without the tokens whose mask is 0."""
    mask = _rows_of_mask(attention_mask)
    if [len(row) for row in mask] != [len(row) for row in rows]:
        raise ArgumentError(
            f"expected an attention_mask for rows of {[len(row) for row in rows]} tokens, got "
            f"{[len(row) for row in mask]}"
        )
    return seen_tokens(rows, mask)


def _rows_of_mask(attention_mask: Any) -> list[list[bool]]:
    given = _plain(attention_mask)
    try:
        rows = [np.asarray(_plain(each)) for each in given]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"expected an attention_mask of 0 and 1: {error}") from None
    if rows and all(row.ndim == 0 for row in rows):
        rows = [np.asarray(given)]
    if not all(row.ndim == 1 and row.dtype.kind in "iub" for row in rows):
        raise ArgumentError("expected an attention_mask of 0 and 1, a row for each prompt")
    return [[bool(keep) for keep in row] for row in rows]


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"{type(value).__name__} of shape {list(shape)}"
    return type(value).__name__

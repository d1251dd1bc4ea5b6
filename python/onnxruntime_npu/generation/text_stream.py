"""Text of tokens that arrive one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 32  # tokens of a piece; more than any character and any run of skipped tokens need


class TextStream:
    """Turns tokens into text piece by piece, holding back incomplete characters.

    The work of a token does not depend on the length of the text: it is decoded behind the tokens
    of the piece before it, because tokenizers write the first word of a text differently.
    """

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._write = write
        self._tokens: list[int] = []  # of the last piece, and those after it
        self._piece = 0  # number of tokens of that piece
        self._written = 0  # number of characters of self._tokens already written

    def put(self, tokens: Sequence[int | None]) -> None:
        """Take the new token of the first row."""
        if tokens[0] is None:
            return
        self._tokens.append(tokens[0])
        text = self._text(self._tokens)
        complete = text.rstrip(_INCOMPLETE)
        self._emit(complete)
        if complete == text and (newest := self._text(self._tokens[self._piece :])):
            self._begin(self._tokens[self._piece :], len(newest))
        elif len(self._tokens) - self._piece >= _LONGEST:  # they make no character, or no text
            self._emit(text)
            self._begin(self._tokens[: self._piece], len(self._text(self._tokens[: self._piece])))

    def end(self) -> None:
        """Write the characters held back."""
        self._emit(self._text(self._tokens))

    def _begin(self, piece: list[int], written: int) -> None:
        self._tokens, self._piece, self._written = piece, len(piece), written

    def _text(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def _emit(self, text: str) -> None:
        if len(text) > self._written:
            self._write(text[self._written :])
            self._written = len(text)

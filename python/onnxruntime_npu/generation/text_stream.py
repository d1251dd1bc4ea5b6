"""Text of tokens that arrive one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class TextStream:
    """Turns tokens into text piece by piece, holding back incomplete characters."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None]) -> None:
        self._tokenizer = tokenizer
        self._write = write
        self._tokens: list[int] = []
        self._start = 0  # tokens before it are written and no longer read
        self._written = 0  # number of characters of self._tokens[self._start:] already written

    def put(self, tokens: Sequence[int | None]) -> None:
        """Take the new token of the first row."""
        if tokens[0] is None:
            return
        self._tokens.append(tokens[0])
        text = self._text()
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return
        self._emit(text)
        if text.endswith("\n"):
            self._start, self._written = len(self._tokens), 0

    def end(self) -> None:
        """Write the characters held back."""
        self._emit(self._text())

    def _text(self) -> str:
        return self._tokenizer.decode(self._tokens[self._start :], skip_special_tokens=True)

    def _emit(self, text: str) -> None:
        if len(text) > self._written:
            self._write(text[self._written :])
            self._written = len(text)

"""The text of one row while it is generated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ArgumentError
from .stop_strings import StopStrings
from .text_stream import TextStream


class RowText:
    """Text up to a stop string, which may begin and end inside tokens."""

    def __init__(
        self, tokenizer: Any, stop_strings: Sequence[str], write: Callable[[str], None] | None
    ) -> None:
        """``write`` gets each piece that is certain to be before a stop string."""
        if write is not None and not callable(write):
            raise ArgumentError(f"on_text expected a function of a text, got {write!r}")
        self._write = write
        self._stop = StopStrings(stop_strings)
        self._stream = TextStream(tokenizer, self._take)
        self._pieces: list[str] = []

    @property
    def ended(self) -> bool:
        """Whether a stop string has come."""
        return self._stop.matched

    @property
    def text(self) -> str:
        """The text so far, without what could begin a stop string."""
        return "".join(self._pieces)

    def put(self, token: int) -> bool:
        """Take the next token; returns whether a stop string has come."""
        self._stream.put([token])
        return self.ended

    def end(self) -> None:
        """Take what was held back into the text: no more tokens follow."""
        if not self.ended:
            self._stream.end()
        if not self.ended:
            self._pass_on(self._stop.end())

    def _take(self, piece: str) -> None:
        if not self.ended:
            self._pass_on(self._stop.put(piece))

    def _pass_on(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            if self._write:
                self._write(text)

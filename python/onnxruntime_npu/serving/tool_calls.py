"""Calls of tools in the text of an answer, which comes in pieces."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..generation.stop_strings import overlap
from .tool_formats import ToolFormat, read_begun, read_calls


@dataclass(frozen=True)
class ToolCall:
    """A call; ``arguments`` are JSON as the model wrote it, ``index`` counts those of an answer."""

    index: int
    identifier: str
    name: str
    arguments: str


class ToolCallParser:
    """Divides text into what the client reads and calls, however the pieces are cut.

    A call is complete before it is passed on. What begins like a call and is none, or one of a
    function that was not offered, is text. White space beside calls is dropped.
    """

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        self._form, self._names = form, names
        self._opening, self._closing = form.opening.strip(), form.closing.strip()
        self._held = ""
        self._space = ""  # white space that is text only if text follows, or no call was made
        self._inside = False
        self._begun = False  # text or a call has been seen
        self._after_call = False
        self.count = 0

    def put(self, piece: str) -> list[str | ToolCall]:
        """Take a piece; returns what is certain."""
        self._held += piece
        parts: list[str | ToolCall] = []
        while self._step(parts):
            pass
        return parts

    def end(self, *, breaks_off: bool = False) -> list[str | ToolCall]:
        """Return what was held back: no more text follows.

        ``breaks_off``: an answer of nothing but calls stops in the middle. Its last call has what
        came of its arguments, and what is less than a name is dropped.
        """
        parts: list[str | ToolCall] = []
        held, self._held = self._held, ""
        if breaks_off:
            if self._inside:
                self._add_calls(read_begun(held, self._form.arguments), parts)
        elif self._inside:
            self._take_body(held, parts, closed=False)
        else:
            self._text(held, parts)
        if self._space and not self.count:
            parts.append(self._space)
        return parts

    def _step(self, parts: list[str | ToolCall]) -> bool:
        """Go on to the next mark; False: it has not come."""
        if self._inside:
            end = self._held.find(self._closing) if self._closing else -1
            if end < 0:
                return False
            body, self._held = self._held[:end], self._held[end + len(self._closing) :]
            self._inside = False
            self._take_body(body, parts, closed=True)
            return True
        at, length = self._opening_place()
        if at >= 0:
            self._text(self._held[:at], parts)
            self._held, self._inside = self._held[at + length :], True
            return True
        keep = overlap(self._held, self._opening) if self._opening else 0
        certain = len(self._held) - keep
        self._text(self._held[:certain], parts)
        self._held = self._held[certain:]
        return False

    def _opening_place(self) -> tuple[int, int]:
        """Return where a call begins, -1: not in what is held; and the length of its opening."""
        if self._opening:
            return self._held.find(self._opening), len(self._opening)
        text = self._held.lstrip()
        begins = not self._begun and text.startswith("{")
        return (len(self._held) - len(text) if begins else -1), 0

    def _take_body(self, body: str, parts: list[str | ToolCall], *, closed: bool) -> None:
        calls = read_calls(body, self._form.arguments)
        if not calls or any(name not in self._names for name, _ in calls):
            self._text(f"{self._opening}{body}{self._closing if closed else ''}", parts)
            return
        self._add_calls(calls, parts)

    def _add_calls(self, calls: Sequence[tuple[str, str]], parts: list[str | ToolCall]) -> None:
        for name, arguments in calls:
            identifier = uuid.uuid4().hex
            identifier = identifier[:9] if self._form.short_ids else f"call_{identifier}"
            parts.append(ToolCall(self.count, identifier, name, arguments))
            self.count += 1
        self._begun = self._after_call = True

    def _text(self, text: str, parts: list[str | ToolCall]) -> None:
        if self._after_call:
            text = text.lstrip()
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._begun, self._after_call = True, False
            parts.append(shown)

"""Stop strings over text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on until a stop string appears in it, however the pieces are cut.

    What could be the beginning of one of ``strings`` is held back until it is known not to be one.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        self.strings = tuple(strings)
        self._held = ""
        self.matched = False

    def put(self, piece: str) -> str:
        """Take a piece; returns what is certain. After a match ``matched`` is set."""
        if not self.strings:
            return piece
        text = self._held + piece
        starts = [at for at in map(text.find, self.strings) if at >= 0]
        if starts:
            self.matched, self._held = True, ""
            return text[: min(starts)]
        hold = max((overlap(text, string) for string in self.strings), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]

    def end(self) -> str:
        """Return what was held back: no more text follows."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, string: str) -> int:
    """Return the length of the longest end of ``text`` that begins ``string``."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0

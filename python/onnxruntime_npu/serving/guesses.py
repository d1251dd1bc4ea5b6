"""Guessed tokens of a request: what followed its last tokens where they stood before.

The engine runs guesses together with the next token and keeps those that it would have chosen, so
that an answer that repeats its prompt or itself takes fewer steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..generation.prompt_lookup import RepeatedText

_LONGEST = 3  # tokens that are compared


class Guesses:
    """Guesses for one request; after wrong ones it rests, twice as long each time."""

    def __init__(self, prompt: Sequence[int], count: int) -> None:
        """Guess up to ``count`` tokens at once."""
        self._text = RepeatedText(prompt, _LONGEST)
        self._count = count
        self._left: list[int] = []  # of the last guess
        self._made = self._right = 0  # numbers of tokens of the last guess
        self._pause = self._resting = 0  # steps

    def append(self, token: int) -> bool:
        """Add a token of the answer; return whether it was guessed."""
        self._text.append(token)
        right = bool(self._left) and self._left[0] == token
        self._left = self._left[1:] if right else []
        self._right += right
        return right

    def next(self, most: int) -> list[int]:
        """Return up to ``most`` tokens for the next step."""
        if self._made:
            self._pause = 0 if self._right else 2 * self._pause + 1
            self._resting = self._pause
        count = 0 if self._resting else min(self._count, most)
        self._resting = max(self._resting - 1, 0)
        self._left = self._text.continuation(count) if count > 0 else []
        self._made, self._right = len(self._left), 0
        return self._left

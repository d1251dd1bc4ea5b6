"""Guesses tokens from earlier text, so that one run of the model scores several of a row.

What followed the last few tokens where they occurred before is run together with the next token.
Its logits are those that the model would have given later; the loop chooses from them as ever, and
what follows the first wrong guess is forgotten. So the chosen tokens are those of plain generation,
whatever chooses them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import onnxruntime as ort


class RepeatedText:
    """The tokens of a row, and where each of its n-grams occurred."""

    def __init__(self, tokens: Sequence[int], longest: int) -> None:
        """``longest``: number of tokens of the longest n-grams that are compared, from 1."""
        self.tokens: list[int] = []
        self._longest = longest
        # Positions after each n-gram, ascending.
        self._after: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Add a token."""
        self.tokens.append(token)
        end = len(self.tokens)
        for size in range(1, min(self._longest, end) + 1):
            self._after[tuple(self.tokens[-size:])].append(end)

    def continuation(self, count: int) -> list[int]:
        """Return up to ``count`` tokens that followed the longest n-gram of the end elsewhere.

        The latest place with as many tokens, else the earliest, which has the most.
        """
        end = len(self.tokens)
        for size in range(min(self._longest, end), 0, -1):
            places = self._after[tuple(self.tokens[-size:])]
            place = places[max(bisect_right(places, end - count) - 1, 0)]
            if place < end:
                return self.tokens[place : place + count]
        return []


class ScoringStepper(Protocol):
    """The state of a batch whose rows may be run alone and more than once."""

    def score(
        self, rows: Sequence[int], past: Sequence[int], new: Sequence[Sequence[int]]
    ) -> list[np.ndarray]:
        """Run some rows after their first ``past`` tokens; logits [S, V] of each one's S new."""

    def prefill(self) -> ort.OrtValue:
        """Return the logits after the prompts, [B, 1, V]."""

    def close(self) -> None:
        """Release the buffers."""


class _Row:
    """A row, and the logits after its last token and after each token that is guessed."""

    def __init__(self, prompt: Sequence[int], longest: int, logits: np.ndarray) -> None:
        self.text = RepeatedText(prompt, longest)
        self.guessed: list[int] = []
        self.logits = logits  # [len(guessed) + 1, V]
        self.ended = False

    def take(self, token: int) -> bool:
        """Add the chosen token; return whether it was guessed, so that its logits are there."""
        self.text.append(token)
        right = bool(self.guessed) and self.guessed[0] == token
        self.guessed = self.guessed[1:] if right else []
        if right:
            self.logits = self.logits[1:]
        return right


class LookupStepper:
    """Steps of a batch in which rows that were guessed are not run.

    Attributes:
        guessed: tokens that were run before they were chosen.
        accepted: those that were chosen then.
    """

    def __init__(
        self,
        state: ScoringStepper,
        rows: Sequence[Sequence[int]],
        *,
        length: int,
        count: int,
        longest: int,
        stop_tokens: frozenset[int],
    ) -> None:
        """Guess up to ``count`` tokens of rows that grow to ``length`` ones.

        ``longest`` is the size of the longest n-grams. A row that got one of ``stop_tokens`` is not
        run any more.
        """
        self._state, self._prompts = state, rows
        self._length, self._count, self._longest = length, count, longest
        self._stop_tokens = stop_tokens
        self._rows: list[_Row] = []
        self.guessed = self.accepted = 0

    def prefill(self) -> ort.OrtValue:
        """Return the logits after the prompts, [B, 1, V]."""
        logits = self._state.prefill()
        self._rows = [
            _Row(prompt, self._longest, last)
            for prompt, last in zip(self._prompts, logits.numpy(), strict=True)
        ]
        return logits

    def decode(self, tokens: np.ndarray) -> ort.OrtValue:
        """Add one token per row, [B], and return the logits after it, [B, 1, V].

        Those of a row that has ended are any.
        """
        running = []
        for index, (row, token) in enumerate(zip(self._rows, tokens.tolist(), strict=True)):
            row.ended = row.ended or token in self._stop_tokens
            if row.ended:
                continue
            if row.take(token):
                self.accepted += 1
            else:
                running.append(index)
        if running:
            self._run(running)
        return ort.OrtValue.ortvalue_from_numpy(np.stack([row.logits[:1] for row in self._rows]))

    def close(self) -> None:
        """Release the buffers."""
        self._state.close()

    def _run(self, running: list[int]) -> None:
        """Score the last token of some rows, and guesses, if there is room for them."""
        rows = [self._rows[index] for index in running]
        for row in rows:
            count = min(self._count, self._length - len(row.text.tokens))
            row.guessed = row.text.continuation(count) if count > 0 else []
            self.guessed += len(row.guessed)
        found = self._state.score(
            running,
            [len(row.text.tokens) - 1 for row in rows],
            [[row.text.tokens[-1], *row.guessed] for row in rows],
        )
        for row, logits in zip(rows, found, strict=True):
            row.logits = logits

"""Scores lowered for tokens that the row has already."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Penalties:
    """The penalties of transformers and of OpenAI's interface, on scores [B, V].

    ``repetition`` divides positive scores, and multiplies negative ones, of tokens of the prompt
    and of the continuation. ``presence`` is subtracted from scores of tokens of the continuation,
    ``frequency`` once for each time that they occur in it.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        vocabulary: int,
        *,
        repetition: float = 1.0,
        presence: float = 0.0,
        frequency: float = 0.0,
    ) -> None:
        """Begin with prompts of any lengths, and no continuation."""
        self._repetition, self._presence = np.float32(repetition), np.float32(presence)
        self._frequency = np.float32(frequency)
        self._seen = np.zeros((len(rows), vocabulary), bool)
        for seen, row in zip(self._seen, rows, strict=True):
            seen[list(row)] = True
        self._counts = np.zeros((len(rows), vocabulary), np.float32)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return scores [B, V] float32 with the penalties."""
        if self._repetition != 1:
            lowered = np.where(scores < 0, scores * self._repetition, scores / self._repetition)
            scores = np.where(self._seen, lowered, scores)
        if self._presence or self._frequency:
            scores = scores - self._frequency * self._counts - self._presence * (self._counts > 0)
        return scores

    def add(self, tokens: np.ndarray) -> None:
        """Take the new token of each row, [B]."""
        rows = np.arange(len(tokens))
        self._seen[rows, tokens] = True
        self._counts[rows, tokens] += 1

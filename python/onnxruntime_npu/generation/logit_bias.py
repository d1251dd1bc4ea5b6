"""Scores of certain tokens raised or lowered at every step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class LogitBias:
    """Adds a number to the scores [B, V] of each of some tokens."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        """Take what to add, by token."""
        self._tokens = np.array(list(bias), np.int64)
        self._added = np.array(list(bias.values()), np.float32)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return scores [B, V] float32 with the bias."""
        scores[:, self._tokens] += self._added
        return scores

    def add(self, tokens: np.ndarray) -> None:
        """Take the new token of each row, [B], which changes nothing."""

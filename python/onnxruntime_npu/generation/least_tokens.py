"""Tokens that may not come before an answer has a certain length."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np


class LeastTokens:
    """Forbids the tokens that end a row until it has so many new ones."""

    def __init__(self, stop_tokens: Collection[int], count: int) -> None:
        """Take the tokens that end a row, and the number of tokens that come first."""
        self._stop_tokens = np.array(sorted(stop_tokens), np.int64)
        self._left = count

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return scores [B, V] float32 with those of forbidden tokens at -inf."""
        if self._left > 0:
            scores[:, self._stop_tokens] = -np.inf
        return scores

    def add(self, tokens: np.ndarray) -> None:
        """Take the new token of each row, [B]."""
        del tokens
        self._left -= 1

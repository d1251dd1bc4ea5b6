"""Chooses the next token of each row from its logits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .errors import ArgumentError


@dataclass
class Sampler:
    """Greedy choice, or sampling with temperature, then top-k, then top-p.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 leave all tokens in. Equal seeds give
    equal tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    _generator: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise ArgumentError(f"expected temperature >= 0, got {self.temperature}")
        if self.top_k < 0:
            raise ArgumentError(f"expected top_k >= 0, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"expected 0 < top_p <= 1, got {self.top_p}")
        if self.seed is not None and self.seed < 0:
            raise ArgumentError(f"expected seed >= 0, got {self.seed}")
        self._generator = np.random.default_rng(self.seed)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """Return the token of each row for logits [rows, V]: int64 [rows]."""
        if self.greedy:
            return logits.argmax(axis=-1)
        return np.array([self._sample(row) for row in logits], dtype=np.int64)

    def _sample(self, logits: np.ndarray) -> int:
        # A tiny temperature must not overflow: scale distances from the maximum, which are <= 0.
        scores = (logits.astype(np.float64) - logits.max()) / self.temperature
        tokens = np.arange(scores.size)
        if 0 < self.top_k < scores.size:
            tokens = np.argpartition(scores, -self.top_k)[-self.top_k :]
        tokens = tokens[np.argsort(-scores[tokens], kind="stable")]
        weights = np.exp(scores[tokens])
        cumulative = np.cumsum(weights / weights.sum())
        if self.top_p < 1:
            # The token that crosses top_p is still in.
            count = int(np.searchsorted(cumulative, self.top_p)) + 1
            tokens, cumulative = tokens[:count], cumulative[:count]
        draw = self._generator.random() * cumulative[-1]
        return int(tokens[min(np.searchsorted(cumulative, draw, side="right"), tokens.size - 1)])

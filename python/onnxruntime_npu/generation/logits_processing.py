"""What changes the scores of tokens on the host before one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from ..errors import ArgumentError
from ..session.ortvalue import ortvalue_to_numpy


class Processor(Protocol):
    """Changes scores, and learns which tokens were chosen."""

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return the new scores of scores [B, V] float32, which it may write to."""

    def add(self, tokens: np.ndarray) -> None:
        """Take the new token of each row, [B]."""


class ProcessedChoice:
    """Chooses tokens from logits that processors change one after the other."""

    def __init__(
        self, processors: Sequence[Processor], choose: Callable[[ort.OrtValue], np.ndarray]
    ) -> None:
        """``choose`` returns the token of each row, [B], for logits [B, 1, V]."""
        self._processors = processors
        self._choose = choose

    def __call__(self, logits: ort.OrtValue) -> np.ndarray:
        """Return the token of each row, int64 [B], for logits [B, S, V]; the last S counts."""
        scores = np.array(ortvalue_to_numpy(logits)[:, -1], np.float32)
        for processor in self._processors:
            scores = processor(scores)
        ready = np.ascontiguousarray(scores[:, None], np.float32)
        chosen = self._choose(ort.OrtValue.ortvalue_from_numpy(ready))
        for processor in self._processors:
            processor.add(chosen)
        return chosen


class UserProcessor:
    """A function of transformers' signature, on torch tensors.

    It gets the tokens so far [B, S] int64, padded on the left, and scores [B, V] float32, and
    returns scores [B, V]. Scores that are all -inf or not numbers leave nothing to choose: an
    ArgumentError, as is another shape.
    """

    def __init__(
        self, function: Callable[[Any, Any], Any], rows: Sequence[Sequence[int]], pad: int
    ) -> None:
        self._function = function
        self._ids = padded(rows, pad)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return what the function makes of scores [B, V] float32."""
        import torch

        returned = self._function(torch.from_numpy(self._ids), torch.from_numpy(scores))
        if not isinstance(returned, torch.Tensor) or not returned.is_floating_point():
            raise ArgumentError(f"{self._expected(scores)}, got {type(returned).__name__}")
        if tuple(returned.shape) != scores.shape:
            raise ArgumentError(f"{self._expected(scores)}, got {list(returned.shape)}")
        found = returned.detach().float().cpu().numpy()
        if not (found.max(axis=-1) > -np.inf).all():
            raise ArgumentError("expected logits_processor to leave a score above -inf in each row")
        return found

    def add(self, tokens: np.ndarray) -> None:
        """Take the new token of each row, [B]."""
        self._ids = np.concatenate([self._ids, tokens[:, None]], axis=1)

    def _expected(self, scores: np.ndarray) -> str:
        return f"expected logits_processor to return a tensor of floats {list(scores.shape)}"


def padded(rows: Sequence[Sequence[int]], pad: int) -> np.ndarray:
    """Return rows of tokens as int64 [B, S], padded on the left."""
    longest = max(map(len, rows))
    return np.array([[pad] * (longest - len(row)) + list(row) for row in rows], np.int64)

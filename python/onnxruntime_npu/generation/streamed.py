"""Tokens for a streamer of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import ArgumentError
from .logits_processing import padded


class Streamed:
    """Gives a streamer the prompts [B, S], the new tokens [B] of each step, and the end.

    The end also follows a failure: who reads an iterator of text in another thread waits for it.
    """

    def __init__(self, streamer: Any, rows: Sequence[Sequence[int]], pad: int) -> None:
        """``streamer`` may be None; ``pad`` fills shorter prompts on the left."""
        if streamer is not None:
            for name in ("put", "end"):
                if not callable(getattr(streamer, name, None)):
                    raise ArgumentError(
                        f"streamer expected methods put and end, got {type(streamer).__name__}"
                    )
        self._streamer = streamer
        self._rows, self._pad = rows, pad

    def __enter__(self) -> Streamed:
        if self._streamer is not None:
            import torch

            self._streamer.put(torch.from_numpy(padded(self._rows, self._pad)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._streamer is not None:
            self._streamer.end()

    def put(self, tokens: np.ndarray, alive: Sequence[bool]) -> None:
        """Give the streamer the new token of each row [B], stop tokens included, or padding."""
        if self._streamer is not None:
            import torch

            self._streamer.put(torch.from_numpy(np.where(alive, tokens, self._pad)))

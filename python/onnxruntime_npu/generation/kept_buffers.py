"""The buffers of the last batch, kept for the next one: a captured graph depends on addresses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Buffers = TypeVar("Buffers")


class KeptBuffers(Generic[Buffers]):
    """Buffers that one batch at a time takes and gives back; of those given back, the last stay.

    ``last`` are these, or None while a batch has them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last: Buffers | None = None
        self._made = 0

    def take(self, fits: Callable[[Buffers], bool], make: Callable[[int], Buffers]) -> Buffers:
        """Return the last buffers if they fit, or new ones: ``make`` gets a number from 1 on."""
        with self._lock:
            kept, self.last = self.last, None
            if kept is not None and fits(kept):
                return kept
            self._made += 1
            number = self._made
        return make(number)

    def give_back(self, buffers: Buffers) -> None:
        """Keep buffers for the next batch."""
        with self._lock:
            self.last = buffers

"""Counts floating-point operations of matmuls, convolutions and attention."""

from __future__ import annotations

from typing import Any


class FlopsCounter:
    """One counter per process, for the thread that starts it: ``start()``, ``get_flops()``.

    pause() and resume() exclude recomputation: there are two totals, without and with it.
    """

    _instance: FlopsCounter | None = None
    _mode: Any
    _paused_at: int | None
    _skipped: int

    def __new__(cls) -> FlopsCounter:
        """Return the singleton."""
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._clear()
        return cls._instance

    def _clear(self) -> None:
        self._mode, self._paused_at, self._skipped = None, None, 0

    def _total(self) -> int:
        return 0 if self._mode is None else self._mode.get_total_flops()

    def start(self) -> None:
        """Start counting from zero."""
        from torch.utils.flop_counter import FlopCounterMode

        if self._mode is None:
            self._mode = FlopCounterMode(display=False)
            self._mode.__enter__()

    def stop(self) -> None:
        """Stop counting and reset both totals."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
        self._clear()

    def pause(self) -> None:
        """Exclude further operations from the first total."""
        if self._paused_at is None:
            self._paused_at = self._total()

    def resume(self) -> None:
        """Count further operations in both totals again."""
        if self._paused_at is not None:
            self._skipped += self._total() - self._paused_at
            self._paused_at = None

    def get_flops(self) -> list[int]:
        """Return [operations without pauses, all operations]."""
        total = self._total()
        paused = 0 if self._paused_at is None else total - self._paused_at
        return [total - self._skipped - paused, total]

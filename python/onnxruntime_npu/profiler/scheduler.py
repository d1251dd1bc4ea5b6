"""Selects the steps of a training loop that a profile records."""

from __future__ import annotations

import warnings

from torch.profiler import ProfilerAction

from ..is_number import is_number

__all__ = ["ProfilerAction", "Schedule"]


class Schedule:
    """Skip ``skip_first`` steps; then, ``repeat`` times: wait, warm up, record ``active`` steps.

    Args:
        wait: steps without profile at the start of each cycle.
        active: recorded steps at its end.
        warmup: steps between them, in which the profiler runs without recording.
        repeat: number of cycles; 0: until the profile ends.
        skip_first: steps before the first cycle.

    An invalid value is replaced, with a warning, as in torch_npu.
    """

    def __init__(
        self, wait: int, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0
    ) -> None:
        self.wait = _at_least("wait", wait, 0)
        self.active = _at_least("active", active, 1)
        self.warmup = _at_least("warmup", warmup, 0)
        self.repeat = _at_least("repeat", repeat, 0)
        self.skip_first = _at_least("skip_first", skip_first, 0)

    def __call__(self, step: int) -> ProfilerAction:
        """Return the profiler's action in a step, counted from 0.

        Raises:
            ValueError: ``step`` is negative.
        """
        if step < 0:
            raise ValueError(f"[profiler.schedule] expected step >= 0, got {step}")
        if step < self.skip_first:
            return ProfilerAction.NONE
        length = self.wait + self.warmup + self.active
        cycle, step = divmod(step - self.skip_first, length)
        if 0 < self.repeat <= cycle or step < self.wait:
            return ProfilerAction.NONE
        if step < self.wait + self.warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if step < length - 1 else ProfilerAction.RECORD_AND_SAVE


def _at_least(name: str, value: int, least: int) -> int:
    if is_number(value, int) and value >= least:
        return value
    warnings.warn(
        f"[profiler.schedule] expected {name} >= {least}, got {value!r}; {least} is used",
        stacklevel=3,
    )
    return least

"""CPU affinity of the calling thread. The device's own threads are not affected."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

_at_import = os.sched_getaffinity(0)


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, (list, tuple)) and len(value) == 2 and all(type(n) is int for n in value)
    )


def set_thread_affinity(core_range: Sequence[int] | Sequence[Sequence[int]] | None = None) -> None:
    """Bind the calling thread to cores.

    Unlike on Ascend, it does not depend on CPU_AFFINITY_CONF.

    Args:
        core_range: ``[first, last]``, or a list of such ranges; None for every core that the
            process had at its start.

    Raises:
        ValueError: not of this form, or not ``0 <= first <= last``.
        OSError: none of the cores exists.
    """
    if core_range is None:
        os.sched_setaffinity(0, _at_import)
        return
    ranges: Any = [core_range] if _is_pair(core_range) else core_range
    if not isinstance(ranges, (list, tuple)) or not ranges or not all(map(_is_pair, ranges)):
        raise ValueError(
            f"Invalid core range: {core_range}; expected [first, last] or a list of such pairs"
        )
    cores: set[int] = set()
    for first, last in ranges:
        if not 0 <= first <= last:
            raise ValueError(f"Invalid core range values: [{first}, {last}]")
        cores.update(range(first, min(last, 1 << 16) + 1))
    os.sched_setaffinity(0, cores)


def reset_thread_affinity() -> None:
    """Bind the calling thread to the cores of the main thread."""
    os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))

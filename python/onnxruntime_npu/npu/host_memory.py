"""Pinned memory: what torch's pinned tensors and the provider's ``npu_pinned`` hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import _C

__all__ = [
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "reset_accumulated_host_memory_stats",
    "reset_peak_host_memory_stats",
]


def host_empty_cache() -> None:
    """Give the pinned memory that is kept for reuse back to the system.

    Freed memory is kept up to 512 MiB. What a copy under way or a captured graph uses stays.
    """
    _C.host_empty_cache()


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Return the counters of host_memory_stats(), nested."""
    return _C.host_memory_stats_as_nested_dict()


def host_memory_stats() -> dict[str, int | float]:
    """Return the counters of pinned memory by name.

    ``allocations`` and ``allocated_bytes`` are what the system gave, ``active_requests`` and
    ``active_bytes`` what tensors, copies under way and captured graphs hold of it; each has
    ``current``, ``peak``, ``allocated``, ``freed``. Bytes are those of the blocks: powers of two.
    ``num_host_alloc`` and ``num_host_free`` count the system's calls; ``host_alloc_time`` and
    ``host_free_time`` have their ``total``, ``max``, ``min``, ``count``, ``avg`` in microseconds.
    """
    return dict(sorted(_flat("", host_memory_stats_as_nested_dict())))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, int | float]]:
    if not isinstance(value, dict):
        yield prefix, value
        return
    for key, inner in value.items():
        yield from _flat(f"{prefix}.{key}" if prefix else key, inner)


def reset_peak_host_memory_stats() -> None:
    """Make the current values of the pinned memory's counters their peaks."""
    _C.reset_peak_host_memory_stats()


def reset_accumulated_host_memory_stats() -> None:
    """Count the pinned memory's allocations and frees from zero."""
    _C.reset_accumulated_host_memory_stats()

"""Pinned memory of torch's pinned tensors and the provider's ``npu_pinned``."""

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
    """Release the cached pinned memory to the system.

    Up to 512 MiB of freed memory are cached. Memory that a running copy or a captured graph uses
    is not released.
    """
    _C.host_empty_cache()


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Return the counters of host_memory_stats(), nested."""
    return _C.host_memory_stats_as_nested_dict()


def host_memory_stats() -> dict[str, int | float]:
    """Return the counters of pinned memory by name.

    ``allocations`` and ``allocated_bytes`` count memory from the system, ``active_requests`` and
    ``active_bytes`` its use by tensors, running copies and captured graphs; each has
    ``current``, ``peak``, ``allocated``, ``freed``. Bytes are those of the blocks: powers of two.
    ``num_host_alloc`` and ``num_host_free`` count system calls; ``host_alloc_time`` and
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
    """Reset the counts of the pinned memory's allocations and frees to zero."""
    _C.reset_accumulated_host_memory_stats()

"""Pinned memory: what torch's pinned tensors hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

__all__ = [
    "host_empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "reset_accumulated_host_memory_stats",
    "reset_peak_host_memory_stats",
]


def host_empty_cache() -> None:
    """Give back cached pinned memory. The host NPU caches none: pinned memory is host memory."""


def _has_torch_device() -> bool:
    if "torch" not in sys.modules:
        return False
    from .. import torch_device

    return torch_device.is_registered()


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Return the counters of host_memory_stats(), nested; empty without the torch device."""
    if not _has_torch_device():
        return {}
    from .. import torch_device

    stats: dict[str, Any] = torch_device.pinned_memory_stats()
    blocks = stats["allocations"]
    return {**stats, "num_host_alloc": blocks["allocated"], "num_host_free": blocks["freed"]}


def host_memory_stats() -> dict[str, int]:
    """Return the counters of torch's pinned memory by name.

    ``allocations`` and ``allocated_bytes`` are what the system gave, ``active_requests`` and
    ``active_bytes`` what tensors hold; each has ``current``, ``peak``, ``allocated``, ``freed``.
    """
    return dict(sorted(_flat("", host_memory_stats_as_nested_dict())))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, int]]:
    if not isinstance(value, dict):
        yield prefix, value
        return
    for key, inner in value.items():
        yield from _flat(f"{prefix}.{key}" if prefix else key, inner)


def reset_peak_host_memory_stats() -> None:
    """Make the current values of the pinned memory's counters their peaks."""
    _reset_host_memory_stats(peaks=True)


def reset_accumulated_host_memory_stats() -> None:
    """Count the pinned memory's allocations and frees from zero."""
    _reset_host_memory_stats(peaks=False)


def _reset_host_memory_stats(peaks: bool) -> None:
    if _has_torch_device():
        from .. import torch_device

        torch_device.reset_pinned_memory_stats(peaks)

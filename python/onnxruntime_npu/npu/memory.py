"""Memory of the device: the caching allocator, its statistics, snapshots, pools."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import pickle
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from .. import _C
from ._arguments import checked_index, device_index, stream_handle
from .pluggable_allocator import NPUPluggableAllocator as NPUPluggableAllocator
from .pluggable_allocator import call_hook, current_allocator, statistics
from .pluggable_allocator import change_current_allocator as change_current_allocator

__all__ = [
    "MemPool",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "empty_cache",
    "empty_virt_addr_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
    "use_mem_pool",
]


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """Return the allocator's counters of one device, nested by family, pool and part.

    A pluggable allocator with a statistics hook reports its own.

    Raises:
        ValueError: ``device`` names no npu device.
    """
    index = device_index(device)
    hooked = statistics(index)
    return _C.memory_stats_as_nested_dict(index) if hooked is None else hooked


def memory_stats(device: Any = None) -> collections.OrderedDict[str, int]:
    """Return the allocator's counters of one device, sorted by key.

    Keys are ``<family>.<pool>.<part>`` such as ``allocated_bytes.all.peak``; the families, pools
    and parts are those of ``torch.cuda.memory_stats``. They count memory of
    both onnxruntime sessions and torch tensors.

    Raises:
        ValueError: ``device`` names no npu device.
    """
    flat: dict[str, int] = {}

    def flatten(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                flatten(f"{prefix}.{key}" if prefix else key, inner)
        else:
            flat[prefix] = value

    flatten("", memory_stats_as_nested_dict(device))
    return collections.OrderedDict(sorted(flat.items()))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Set every running total (``allocated``, ``freed``, the ``num_*`` counters) to zero."""
    _C.reset_accumulated_memory_stats(checked_index(device))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Set every peak to its current value."""
    index = checked_index(device)
    _C.reset_peak_memory_stats(index)
    call_hook("reset_peak_status", index)


def _deprecated(old: str, new: str) -> None:
    warnings.warn(
        f"torch.npu.{old} is deprecated: use torch.npu.{new}", DeprecationWarning, stacklevel=3
    )


def reset_max_memory_allocated(device: Any = None) -> None:
    """Deprecated name of reset_peak_memory_stats, which resets all peaks."""
    _deprecated("reset_max_memory_allocated", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Any = None) -> None:
    """Deprecated name of reset_peak_memory_stats, which resets all peaks."""
    _deprecated("reset_max_memory_cached", "reset_peak_memory_stats")
    reset_peak_memory_stats(device)


def memory_allocated(device: Any = None) -> int:
    """Return the bytes in allocated blocks."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak of allocated bytes since the last reset."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Any = None) -> int:
    """Return the bytes that the allocator holds on the device, free blocks included."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Any = None) -> int:
    """Return the peak of reserved bytes since the last reset."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def memory_cached(device: Any = None) -> int:
    """Deprecated name of memory_reserved."""
    _deprecated("memory_cached", "memory_reserved")
    return memory_reserved(device)


def max_memory_cached(device: Any = None) -> int:
    """Deprecated name of max_memory_reserved."""
    _deprecated("max_memory_cached", "max_memory_reserved")
    return max_memory_reserved(device)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return (free bytes, total bytes) of the device.

    The host NPU's total is its memory limit, and this process is its only user.

    Raises:
        AssertionError: there is no such device.
    """
    index = checked_index(device)
    total = _C.memory_limit(index)
    return max(total - memory_reserved(index), 0), total


def empty_cache() -> None:
    """Release unused cached memory to the devices; allocated blocks are unaffected."""
    for index in range(_C.device_count()):
        _C.empty_cache(index)
    call_hook("reset")


def empty_virt_addr_cache() -> None:
    """Release the free ends of expandable segments; other segments are unaffected.

    Raises:
        RuntimeError: expandable_segments is off in PYTORCH_NPU_ALLOC_CONF.
    """
    for index in range(_C.device_count()):
        _C.trim_expandable_segments(index)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Allow this process ``fraction`` of a device's memory; more raises OutOfMemoryError.

    Raises:
        TypeError: ``fraction`` is not a float.
        ValueError: it is not from 0 to 1.
    """
    if not isinstance(fraction, float):
        raise TypeError(f"Invalid type for fraction argument, must be `float`, got {fraction!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    index = checked_index(device)
    _C.set_memory_fraction(index, fraction)
    call_hook("memory_fraction", ctypes.c_double(fraction), index)


def get_per_process_memory_fraction(device: Any = None) -> float:
    """Return the fraction of a device's memory that this process may use."""
    return _C.memory_fraction(checked_index(device))


def caching_allocator_alloc(size: int, device: Any = None, stream: Any = None) -> int:
    """Allocate a block of at least ``size`` bytes; free it with caching_allocator_delete.

    Args:
        size: bytes.
        device: default the current one.
        stream: the Stream, or its handle, that first uses it; default the current one.

    Returns:
        The address; 0 for size 0.

    Raises:
        TypeError: ``stream`` is neither a Stream nor an int.
        OutOfMemoryError: torch's, where torch is loaded.
    """
    if size < 0:
        raise ValueError(f"expected a size of 0 or more bytes, got {size}")
    handle = stream_handle(stream)
    return _C.allocate(size, checked_index(device), handle)


def caching_allocator_delete(mem_ptr: int) -> None:
    """Free a block of caching_allocator_alloc.

    Raises:
        RuntimeError: the address is not an allocated block (invalid device pointer).
    """
    _C.free(mem_ptr)


def get_allocator_backend() -> str:
    """Return ``"native"``, or ``"pluggable"`` after change_current_allocator."""
    return "native" if current_allocator() is None else "pluggable"


def _set_allocator_settings(settings: str) -> None:
    """Change ``expandable_segments`` to ``True`` or ``False`` at run time.

    Raises:
        ValueError: another key or value.
    """
    key, _, value = settings.replace(" ", "").partition(":")
    if key != "expandable_segments" or value not in ("True", "False"):
        raise ValueError(
            f"expected expandable_segments:True or expandable_segments:False, got {settings!r}; "
            "set the other keys in PYTORCH_NPU_ALLOC_CONF before the process starts"
        )
    for index in range(_C.device_count()):
        _C.set_expandable_segments(index, value == "True")


# --- snapshots and history


def memory_snapshot(mempool_id: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """Return the segments of all devices with their blocks; of one memory pool if given its id."""
    segments = [s for index in range(_C.device_count()) for s in _C.memory_snapshot(index)]
    if mempool_id is None:
        return segments
    return [s for s in segments if s["segment_pool_id"] == tuple(mempool_id)]


def _record_memory_history(
    enabled: str | None = "all",
    context: str | None = "all",
    stacks: str = "all",
    max_entries: int = 2**20,
    device: Any = None,
) -> None:
    """Start (or with ``enabled=None`` stop) recording of allocations for _snapshot.

    Args:
        enabled: ``"all"`` or ``"state"``; None stops and forgets.
        context: ``"all"``, ``"state"`` or ``"alloc"`` to record Python stacks; None for no stacks.
        stacks: accepted; only Python frames are recorded.
        max_entries: number of most recent events to keep.
        device: accepted; every device records.
    """
    if enabled not in (None, "all", "state"):
        raise ValueError(f"expected enabled to be None, 'all' or 'state', got {enabled!r}")
    if context not in (None, "all", "state", "alloc"):
        raise ValueError(f"expected context None, 'all', 'state' or 'alloc', got {context!r}")
    for index in range(_C.device_count()):
        entries = 0 if enabled is None else max_entries
        _C.record_memory_history(index, entries, context is not None)


def _snapshot(device: Any = None) -> dict[str, Any]:
    """Return segments and, while a history is recorded, the events, in memory_viz's form."""
    count = _C.device_count()
    return {
        "segments": memory_snapshot(),
        "device_traces": [_C.memory_history(index) for index in range(count)],
    }


def _dump_snapshot(filename: str = "dump_snapshot.pickle") -> None:
    """Write _snapshot() as a pickle that torch's memory_viz opens."""
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


# --- summary

_SIZES = ["B", "KB", "MB", "GB", "TB", "PB"]
_COUNTS = ["", "K", "M"]
_SUMMARY_ROWS = [
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("NPU reserved memory", "reserved_bytes", True),
    ("Non-releasable memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active allocs", "active", False),
    ("NPU reserved segments", "segment", False),
    ("Non-releasable allocs", "inactive_split", False),
]
_PARTS = ("current", "peak", "allocated", "freed")


def _scaled(value: int, reference: int, is_size: bool) -> str:
    """Format in the unit that suits ``reference``, so that a column has one unit."""
    units, step, limit = (_SIZES, 1024, 768 * 1024) if is_size else (_COUNTS, 1000, 750 * 1000)
    unit = 0
    while reference >= limit and unit < len(units) - 1:
        reference //= step
        value //= step
        unit += 1
    return f"{value:7d} {units[unit]:<2}"


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the allocator's counters as a table to print.

    Args:
        device: default the current one.
        abbreviated: without the rows of the small and the large pool.
    """
    index = device_index(device)
    stats = memory_stats(index)
    rule, thin = "|" + "=" * 75 + "|", "|" + "-" * 75 + "|"
    ooms, retries = stats["num_ooms"], stats["num_alloc_retries"]
    columns = [" Metric".ljust(23), *(f" {c:<10} " for c in ("Cur Usage", "Peak Usage"))]
    columns += [f" {c:<10} " for c in ("Tot Alloc", "Tot Freed")]
    lines = [
        rule,
        "|" + f"PyTorch NPU memory summary, device ID {index}".center(75) + "|",
        thin,
        "|"
        + f"  NPU OOMs: {ooms}".ljust(38)
        + f"|     npuMalloc retries: {retries}".ljust(37)
        + "|",
        rule,
        "|" + "|".join(columns) + "|",
        thin,
    ]

    def row(label: str, prefix: str, reference: str, is_size: bool) -> str:
        cells = [
            _scaled(stats[f"{prefix}.{p}"], stats[f"{reference}.{p}"], is_size) for p in _PARTS
        ]
        return f"| {label:<21} | " + " | ".join(cells) + " |"

    for label, family, is_size in _SUMMARY_ROWS:
        total = f"{family}.all"
        lines.append(row(label, total, total, is_size))
        if not abbreviated:
            lines.append(row("      from large pool", f"{family}.large_pool", total, is_size))
            lines.append(row("      from small pool", f"{family}.small_pool", total, is_size))
        lines.append(thin)
    for label, family in (
        ("Oversize allocations", "oversize_allocations"),
        ("Oversize NPU segments", "oversize_segments"),
    ):
        lines += [row(label, family, family, False), thin]
    lines[-1] = rule
    return "\n".join(lines) + "\n"


# --- pluggable allocators and pools


_pool_numbers = itertools.count(1)
_pool_lock = threading.Lock()


def new_pool_id() -> tuple[int, int]:
    """Return a unique id for a private pool."""
    with _pool_lock:
        return 0, next(_pool_numbers)


class MemPool:
    """A private pool: memory allocated inside use_mem_pool() is separate from all other memory.

    Args:
        allocator: must be None: a pool of the caching allocator.
        use_on_oom: accepted; the pool's memory is reused elsewhere only after its destruction.
        no_split: accepted; blocks of a pool are split like all others.
        device: whose memory; default the current one.
    """

    def __init__(
        self,
        allocator: Any = None,
        use_on_oom: bool = False,
        no_split: bool = False,
        device: Any = None,
    ) -> None:
        if allocator is not None:
            raise NotImplementedError("a MemPool of a pluggable allocator is not supported")
        self._device = checked_index(device)
        self._id = new_pool_id()
        _C.retain_pool(self._device, self._id)

    @property
    def id(self) -> tuple[int, int]:
        """The pool's id, as memory_snapshot() shows it."""
        return self._id

    def use_count(self) -> int:
        """Return the number of references: this object, and every active use_mem_pool()."""
        return _C.pool_use_count(self._device, self._id)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the pool's segments."""
        return memory_snapshot(self._id)

    def __del__(self) -> None:
        if hasattr(self, "_id") and _C is not None:
            _C.release_pool(self._device, self._id)
            call_hook("release_pool", self._device, *self._id)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """Allocate this thread's memory from the pool within the block.

    Raises:
        ValueError: ``device`` is another one than the pool's.
    """
    index = pool._device if device is None else checked_index(device)
    if index != pool._device:
        raise ValueError(f"expected the pool's device {pool._device}, got {index}")
    _C.begin_thread_pool(index, pool.id)
    call_hook("begin_allocate_to_pool", index, *pool.id)
    try:
        yield
    finally:
        _C.end_pool(index, pool.id)
        call_hook("end_allocate_to_pool", index, *pool.id)

"""Allocators from a shared library that replace the caching allocator."""

from __future__ import annotations

import ctypes
from typing import Any

from .. import _C, torch_bridge
from ._lazy import init

__all__ = ["NPUPluggableAllocator", "change_current_allocator"]

_STREAM_HOOKS = ("record_stream", "erase_stream")  # called by the allocator in C++

_pluggable: NPUPluggableAllocator | None = None


class NPUPluggableAllocator:
    """An allocator of two C functions in a shared library.

    ``void* alloc(size_t size, int device, void* stream)`` and
    ``void free(void* ptr, size_t size, int device, void* stream)``. A block is passed to
    ``free`` after the work that was queued on its stream.

    Args:
        path_to_so_file: the library.
        alloc_fn_name: name of its alloc function.
        free_fn_name: name of its free function.

    Raises:
        OSError: the library cannot be loaded.
        AttributeError: it has no such function.
    """

    def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
        self._library = ctypes.CDLL(path_to_so_file)
        self._alloc = self._address(alloc_fn_name)
        self._free = self._address(free_fn_name)
        self._hooks: dict[str, int] = {}

    def _address(self, name: str) -> int:
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None
        return address

    def allocator(self) -> NPUPluggableAllocator:
        """Return the object with the hook setters, like torch's own allocator classes."""
        return self

    def _set_hook(self, name: str, function: int) -> None:
        if not isinstance(function, int) or function == 0:
            raise TypeError(
                f"set_{name}_fn: expected the address of a C function, got {function!r}; take "
                "ctypes.cast(library.function, ctypes.c_void_p).value"
            )
        if name in _STREAM_HOOKS and _pluggable is self:
            raise RuntimeError(f"set_{name}_fn: set it before change_current_allocator")
        self._hooks[name] = function

    def set_init_fn(self, function: int) -> None:
        """``void (int device_count)``, called by change_current_allocator."""
        self._set_hook("init", function)

    def set_reset_fn(self, function: int) -> None:
        """``void ()``, called by empty_cache."""
        self._set_hook("reset", function)

    def set_memory_fraction_fn(self, function: int) -> None:
        """``void (double fraction, int device)``, called by set_per_process_memory_fraction."""
        self._set_hook("memory_fraction", function)

    def set_base_alloc_fn(self, function: int) -> None:
        """``void* (void* ptr, size_t* size)``; unused: memory is not shared between processes."""
        self._set_hook("base_alloc", function)

    def set_record_stream_fn(self, function: int) -> None:
        """``void (void* ptr, void* stream)``, called by record_stream."""
        self._set_hook("record_stream", function)

    def set_erase_stream_fn(self, function: int) -> None:
        """``void (void* ptr, void* stream)``, called by erase_stream."""
        self._set_hook("erase_stream", function)

    def set_get_device_stats_fn(self, function: int) -> None:
        """``c10::CachingDeviceAllocator::DeviceStats (c10::DeviceIndex)``, called by memory_stats.

        Raises:
            NotImplementedError: this build has no torch device, which defines torch's structure.
        """
        if not torch_bridge.is_built():
            raise NotImplementedError(
                "set_get_device_stats_fn: the function returns a C++ structure of torch, and this "
                "build has no torch device; read the statistics from the allocator's own library"
            )
        self._set_hook("get_device_stats", function)

    def set_reset_peak_status_fn(self, function: int) -> None:
        """``void (int device)``, called by reset_peak_memory_stats."""
        self._set_hook("reset_peak_status", function)

    def set_begin_allocate_to_pool(self, function: int) -> None:
        """``void (int device, uint64_t pool_first, uint64_t pool_second)``, by use_mem_pool."""
        self._set_hook("begin_allocate_to_pool", function)

    def set_end_allocate_to_pool_fn(self, function: int) -> None:
        """``void (int device, uint64_t pool_first, uint64_t pool_second)``, when it is left."""
        self._set_hook("end_allocate_to_pool", function)

    def set_release_pool(self, function: int) -> None:
        """``void (int device, uint64_t pool_first, uint64_t pool_second)``, as a MemPool ends."""
        self._set_hook("release_pool", function)


def current_allocator() -> NPUPluggableAllocator | None:
    """Return the allocator set by change_current_allocator, if any."""
    return _pluggable


def statistics(device: int) -> dict[str, Any] | None:
    """Return the current allocator's own statistics, if it has that hook."""
    function = _pluggable._hooks.get("get_device_stats") if _pluggable is not None else None
    if function is None:
        return None
    return torch_bridge.allocator_statistics(function, device)


def call_hook(name: str, *arguments: Any) -> None:
    """Call a hook of the current allocator, if it is set."""
    if _pluggable is None or name not in _pluggable._hooks:
        return
    types: list[Any] = [
        ctypes.c_double if isinstance(a, ctypes.c_double) else ctypes.c_int for a in arguments
    ]
    if name.endswith("_pool"):
        types[1:] = [ctypes.c_uint64, ctypes.c_uint64]
    ctypes.CFUNCTYPE(None, *types)(_pluggable._hooks[name])(*arguments)


def change_current_allocator(allocator: NPUPluggableAllocator) -> None:
    """Replace the allocator of the process; only before the first allocation on a device.

    Raises:
        TypeError: ``allocator`` is not an NPUPluggableAllocator.
        RuntimeError: memory was already allocated.
    """
    global _pluggable
    if not isinstance(allocator, NPUPluggableAllocator):
        raise TypeError(f"expected an NPUPluggableAllocator, got {type(allocator).__name__}")
    init()
    hooks = (allocator._hooks.get(name, 0) for name in _STREAM_HOOKS)
    _C.use_pluggable_allocator(allocator._alloc, allocator._free, *hooks)
    _pluggable = allocator
    call_hook("init", _C.device_count())

"""Lazy initialisation: calls made before the device is opened are deferred until then."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable

from .. import _C

_lock = threading.RLock()
_queued: list[tuple[Callable[[], None], str]] = []
_opened_by: int | None = None  # process id
_in_init = threading.local()


class DeferredNpuCallError(Exception):
    """A call that was queued before initialisation failed; the message has its original stack."""


def is_initialized() -> bool:
    """Return whether this process has initialised the device layer."""
    return _opened_by == os.getpid()


def init() -> None:
    """Open the device layer now; done by every function that needs it. Idempotent.

    Raises:
        RuntimeError: in a process forked after initialisation; use the 'spawn' start method.
        DeferredNpuCallError: a call queued before initialisation failed.
    """
    global _opened_by
    if is_initialized() or getattr(_in_init, "running", False):
        return
    with _lock:
        if is_initialized():
            return
        if _opened_by is not None:
            raise RuntimeError(
                "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, "
                "you must use the 'spawn' start method"
            )
        _in_init.running = True
        try:
            _C.device_count()  # builds the runtime; raises for invalid environment variables
            while _queued:
                call, origin = _queued.pop(0)
                try:
                    call()
                except Exception as error:
                    raise DeferredNpuCallError(
                        f"NPU call failed lazily at initialization with error: {error}\n\n"
                        f"NPU call was originally invoked at:\n\n{origin}"
                    ) from error
            _opened_by = os.getpid()
        finally:
            _in_init.running = False


def lazy_call(call: Callable[[], None]) -> None:
    """Open the device and run ``call``; defer it without a device or while the device opens.

    Opening a host NPU costs nothing, and torch tensors open it without this module: a deferred call
    would run too late for them.
    """
    with _lock:
        if getattr(_in_init, "running", False) or not _C.device_count():
            _queued.append((call, "".join(traceback.format_stack())))
            return
    init()
    call()


def _is_in_bad_fork() -> bool:
    """Return whether this process was forked with the device open; called by torch."""
    return _opened_by is not None and not is_initialized()

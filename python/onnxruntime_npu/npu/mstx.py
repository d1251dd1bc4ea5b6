"""Marks and ranges for profiles, and profiles written as Chrome traces."""

from __future__ import annotations

import functools
import itertools
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import _C
from ..is_number import is_number
from . import mark_recording
from .streams import Event, Stream

__all__ = ["mstx", "profile"]

_lock = threading.Lock()
_open: dict[int, tuple[str, str]] = {}  # message and domain of ranges, by id
_numbers = itertools.count(1)
_stacks = threading.local()


def _now_us() -> float:
    return time.monotonic_ns() / 1000  # the clock of launches and events


def _add(event: dict[str, Any]) -> None:
    mark_recording.add({"pid": os.getpid(), "tid": threading.get_native_id(), **event})


def _mark_on_stream(message: str, stream: Stream | None, domain: str) -> None:
    """Mark the end of the stream's queued work; its time is known at the end of the profile."""
    if stream is None or not mark_recording.is_on():
        return
    reached = Event(enable_timing=True)
    reached.record(stream)
    where = {"pid": stream.device_index, "tid": stream._stream.id}
    mark_recording.add(
        {"ph": "i", "s": "t", "name": message, "cat": domain, "ts": reached, **where}
    )


def _wrong(message: Any, stream: Any, domain: Any) -> bool:
    problem = ""
    if not isinstance(message, str) or not message:
        problem = f"expected a message, got {message!r}"
    elif not isinstance(domain, str) or not domain:
        problem = f"expected a domain, got {domain!r}"
    elif stream is not None and not isinstance(stream, Stream):
        problem = f"expected a torch.npu.Stream, got {type(stream).__name__}"
    if problem:
        warnings.warn(f"mstx: {problem}; the call is ignored", stacklevel=3)
    return bool(problem)


class mstx:
    """Marks and ranges, recorded in profile() only. Invalid arguments only warn."""

    @staticmethod
    def mark(message: str, stream: Stream | None = None, domain: str = "default") -> None:
        """Mark the current time; with ``stream`` also the end of its queued work."""
        if _wrong(message, stream, domain):
            return
        _add({"ph": "i", "s": "t", "name": message, "cat": domain, "ts": _now_us()})
        _mark_on_stream(message, stream, domain)

    @staticmethod
    def range_start(message: str, stream: Stream | None = None, domain: str = "default") -> int:
        """Open a range and return its id; 0 for invalid arguments."""
        if _wrong(message, stream, domain):
            return 0
        number = next(_numbers)
        with _lock:
            _open[number] = (message, domain)
        _add({"ph": "b", "name": message, "cat": domain, "id": number, "ts": _now_us()})
        _mark_on_stream(message, stream, domain)
        return number

    @staticmethod
    def range_end(range_id: int, domain: str = "default") -> None:
        """Close a range, on any thread; id 0 does nothing."""
        if not is_number(range_id, int):
            warnings.warn(f"mstx: expected the id of a range, got {range_id!r}", stacklevel=2)
            return
        with _lock:
            known = _open.pop(range_id, None)
        if known is None:
            if range_id != 0:
                warnings.warn(f"mstx: no range {range_id} is open", stacklevel=2)
            return
        message, domain = known
        _add({"ph": "e", "name": message, "cat": domain, "id": range_id, "ts": _now_us()})

    @staticmethod
    def range_push(message: str, stream: Stream | None = None, domain: str = "default") -> int:
        """Open a range inside this thread's innermost one; return the depth, -1 if not opened."""
        number = mstx.range_start(message, stream, domain)
        if number == 0:
            return -1
        stack = _stacks.__dict__.setdefault(domain, [])
        stack.append(number)
        return len(stack) - 1

    @staticmethod
    def range_pop(domain: str = "default") -> int:
        """Close this thread's innermost range; return its depth, -1 when none is open."""
        stack = _stacks.__dict__.get(domain)
        if not stack:
            return -1
        mstx.range_end(stack.pop(), domain)
        return len(stack)

    @staticmethod
    def mstx_range(
        message: str, stream: Stream | None = None, domain: str = "default"
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator that puts a range around each call."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                number = mstx.range_start(message, stream, domain)
                try:
                    return function(*args, **kwargs)
                finally:
                    mstx.range_end(number, domain)

            return call

        return decorate

    @staticmethod
    @contextmanager
    def annotate(
        message: str = "", stream: Stream | None = None, domain: str = "default"
    ) -> Iterator[None]:
        """Context manager and decorator: a range around the enclosed code."""
        number = mstx.range_start(message, stream, domain)
        try:
            yield
        finally:
            mstx.range_end(number, domain)


@contextmanager
def profile(path: str | os.PathLike[str]) -> Iterator[None]:
    """Write the work within the block as a Chrome trace, which Perfetto opens.

    The trace has every launch on every stream, of sessions and torch alike, and the marks and
    ranges of mstx.

    Args:
        path: the JSON file.

    Raises:
        RuntimeError: a profile is already running.
    """
    if not _C.start_launch_trace():
        raise RuntimeError("a profile runs already: end it before the next one")
    mark_recording.start()
    try:
        yield
    finally:
        spans = _C.stop_launch_trace()
        events = mark_recording.stop()
        for op, device, stream, begin, end in spans:
            times = {"ts": begin / 1000, "dur": (end - begin) / 1000}
            where = {"pid": device, "tid": stream}
            events.append({"ph": "X", "name": op, "cat": "kernel", **where, **times})
        for device, stream in sorted({(span[1], span[2]) for span in spans}):
            named = {"ph": "M", "pid": device, "tid": stream}
            events.append({**named, "name": "process_name", "args": {"name": f"NPU {device}"}})
            events.append({**named, "name": "thread_name", "args": {"name": f"stream {stream}"}})
        with open(path, "w") as file:
            json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)

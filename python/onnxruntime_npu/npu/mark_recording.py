"""Records the marks of mstx for the trace of a running profile."""

from __future__ import annotations

import threading
from typing import Any

from .streams import Event

_lock = threading.Lock()
_on = False
_events: list[dict[str, Any]] = []  # Chrome trace format, except the times of device marks


def is_on() -> bool:
    """Return whether a profile records marks."""
    return _on


def add(event: dict[str, Any]) -> None:
    """Store an event if a profile runs. ``ts``: microseconds, or a pending Event."""
    with _lock:
        if _on:
            _events.append(event)


def start() -> None:
    """Start recording with an empty list."""
    global _on
    with _lock:
        _events.clear()
        _on = True


def stop() -> list[dict[str, Any]]:
    """Stop, and return the events; ``ts`` is the steady clock in microseconds. Waits for marks."""
    global _on
    with _lock:
        _on = False
        events = list(_events)
        _events.clear()
    for event in events:
        if isinstance(event["ts"], Event):
            event["ts"].synchronize()
            event["ts"] = event["ts"].recorded_time()
    return events

"""What mstx marks while a profile runs, for the profile's trace."""

from __future__ import annotations

import threading
from typing import Any

from .streams import Event

_lock = threading.Lock()
_on = False
_events: list[dict[str, Any]] = []  # of the Chrome trace format, but for device marks' times


def is_on() -> bool:
    """Say whether a profile wants marks."""
    return _on


def add(event: dict[str, Any]) -> None:
    """Keep an event; nothing while no profile runs. ``ts``: microseconds, or an Event to come."""
    with _lock:
        if _on:
            _events.append(event)


def start() -> None:
    """Begin, with nothing kept."""
    global _on
    with _lock:
        _events.clear()
        _on = True


def stop() -> list[dict[str, Any]]:
    """End, and return the events; ``ts`` is the steady clock in microseconds. Waits for marks."""
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

"""Finds unordered accesses of two streams to one tensor.

It observes torch operators on npu tensors and the events and waits of this package. torch's own
record of accesses and streams (torch.cuda._sanitizer) detects the races.
"""

from __future__ import annotations

from typing import Any

from . import devices, streams
from ._lazy import init

__all__ = ["enable_npu_sanitizer"]

_sanitizer: Any = None


def _watch_synchronisation(handler: Any) -> None:
    """Let events, streams and devices of this package report to ``handler``."""

    def report(owner: Any, name: str, tell: Any) -> None:
        original = getattr(owner, name)

        def call(self: Any, *args: Any) -> Any:
            result = original(self, *args)
            tell(self, *args)
            return result

        setattr(owner, name, call)

    def current(stream: Any) -> Any:
        return streams.current_stream() if stream is None else stream

    event = streams.Event
    report(
        event,
        "record",
        lambda e, s=None: handler._handle_event_record(id(e), current(s).stream_id),
    )
    report(event, "wait", lambda e, s=None: handler._handle_event_wait(id(e), current(s).stream_id))
    report(event, "synchronize", lambda e: handler._handle_event_synchronization(id(e)))
    report(
        streams.Stream,
        "synchronize",
        lambda s: handler._handle_stream_synchronization(s.stream_id),
    )

    devices.after_synchronize.append(handler._handle_device_synchronization)


def enable_npu_sanitizer() -> None:
    """Check this thread's operators from now on; the operator that completes a race raises.

    A race is an unordered access of two streams to a tensor, or the reuse of freed memory for a
    tensor while another stream may still access it. Repeated calls do nothing.

    Raises:
        torch.cuda._sanitizer.CUDASanitizerErrors: from the offending operator; ``errors`` has both
            accesses with their stacks.
    """
    global _sanitizer
    init()
    if _sanitizer is None:
        from torch.cuda import _sanitizer as accesses

        from ._access_order import AccessOrder

        handler = accesses.EventHandler()
        _watch_synchronisation(handler)
        _sanitizer = AccessOrder(handler)
        _sanitizer.__enter__()

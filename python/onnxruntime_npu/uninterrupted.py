"""Blocks that are done as a whole, whatever signals come meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

_PUT_OFF = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off what handles signals in Python until the block is done.

    Only the main thread handles signals: in others nothing interrupts the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {number: signal.getsignal(number) for number in _PUT_OFF}
    put_off = {number: handler for number, handler in handlers.items() if callable(handler)}
    try:
        for number in put_off:
            signal.signal(number, lambda number, _frame: came.append(number))
        yield
    finally:
        for number, handler in put_off.items():
            signal.signal(number, handler)
        if came:
            os.kill(os.getpid(), came[0])

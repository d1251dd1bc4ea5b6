"""What the processes of models have in common: a connection to the server, and orderly ends.

A process of its own, since an engine that has failed stays so, and a crash in native code must not
take the connections of the server with it. The main thread owns the model; a second one reads what
the server sends, so that the server never waits for a step to end.
"""

from __future__ import annotations

import queue
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .channel import Channel

_EXIT_SECONDS = 5.0


@dataclass(frozen=True)
class Failed:
    """To the server, before the process ends: it cannot go on."""

    reason: str


class Inbox:
    """Messages of the server, read by a thread; after the last one comes None."""

    def __init__(self, channel: Channel) -> None:
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(channel,), daemon=True).start()

    def take(self, *, wait: bool) -> list[Any]:
        """Return what has come; ``wait``: at least one message."""
        messages = []
        while wait or not self._messages.empty():
            messages.append(self._messages.get())
            wait = False
        return messages

    def put(self, message: Any) -> None:
        """Add a message of this process itself; any thread may."""
        self._messages.put(message)

    def _read(self, channel: Channel) -> None:
        try:
            while True:
                self._messages.put(channel.recv())
        except (EOFError, OSError):
            self._messages.put(None)


def end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process whose connection is closed, kill it after a while; return its code."""
    try:
        return process.wait(_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def serve_connection(arguments: list[str], run: Callable[[Channel, Path, str, int], None]) -> int:
    """Call ``run`` with the channel, directory, provider and device of FD DIR PROVIDER DEVICE.

    It returns when the other end closes. Returns the exit code.
    """
    # The server decides when to stop: Ctrl-C reaches this process, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    try:
        run(channel, Path(arguments[1]), arguments[2], int(arguments[3]))
    except (BrokenPipeError, ConnectionResetError):  # the server is gone
        return 0
    except Exception as error:
        try:
            channel.send(Failed(" ".join(str(error).split()) or type(error).__name__))
        except OSError:
            return 0
        return 1
    return 0

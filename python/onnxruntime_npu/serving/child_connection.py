"""A model's process as the server's event loop sees it: started, sent to, heard, ended."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .child_process import end


def resident_bytes_of(process: int) -> int:
    """Return the memory that a process occupies; 0 if it has ended."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * resource.getpagesize()


class ChildConnection:
    """A running process, of a module that takes a file descriptor and other arguments.

    Two threads carry messages, so that the event loop waits for neither side: a process that has
    stopped reading does not stop the server.
    """

    def __init__(
        self, module: str, arguments: list[str], on_message: Callable[[Any], None]
    ) -> None:
        """Start the process; ``on_message`` is called on the event loop.

        Raises OSError if the process cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            except OSError:
                ours.close()
                raise
        self._connection = Connection(ours.detach())
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._on_message = on_message
        self._loop, self._gone = asyncio.get_running_loop(), asyncio.Event()
        self._threads = [
            threading.Thread(target=target, name=f"{module}-{target.__name__}", daemon=True)
            for target in (self._read, self._write)
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Any) -> None:
        """Queue a message; one that the process no longer reads is dropped."""
        self._outbox.put(message)

    def resident_bytes(self) -> int:
        """Return the memory that the process occupies; 0 if it has ended."""
        return resident_bytes_of(self._process.pid)

    async def until_ended(self) -> int:
        """Wait until the process ends its side, or end it when cancelled; returns its exit code."""
        try:
            await self._gone.wait()
        finally:
            code = await asyncio.to_thread(self._end)
        return code

    def _read(self) -> None:
        """Pass messages on to the event loop, which may have ended before the process."""
        try:
            while True:
                self._loop.call_soon_threadsafe(self._on_message, self._connection.recv())
        except (EOFError, OSError, RuntimeError):
            pass
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._gone.set)

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            while (message := self._outbox.get()) is not None:
                self._connection.send(message)

    def _end(self) -> int:
        """Close the connection, which ends the process."""
        # Closing only the descriptor would leave the threads in their calls.
        with socket.socket(fileno=self._connection.fileno()) as ours:
            with contextlib.suppress(OSError):  # the other end is closed already
                ours.shutdown(socket.SHUT_RDWR)
            self._outbox.put(None)
            for thread in self._threads:
                thread.join()
            ours.detach()
        self._connection.close()
        return end(self._process)

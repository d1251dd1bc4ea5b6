"""A model's process as the server's event loop sees it: started, sent to, heard, ended."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .channel import PART, Frames, framed
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

    All on the event loop, which waits for neither side: what a process that stands still does not
    read is kept.
    """

    def __init__(
        self, module: str, arguments: list[str], on_message: Callable[[Any], None]
    ) -> None:
        """Start the process; ``on_message`` is called on the event loop.

        Raises OSError if the process cannot be started.
        """
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            except OSError:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        self._on_message = on_message
        self._frames = Frames()
        self._unsent = bytearray()
        self._loop, self._gone = asyncio.get_running_loop(), asyncio.Event()
        self._loop.add_reader(self._socket, self._read)

    def send(self, message: Any) -> None:
        """Send a message; one that the process no longer reads is dropped."""
        waits = bool(self._unsent)
        self._unsent += framed(message)
        if not waits:
            self._write()

    def resident_bytes(self) -> int:
        """Return the memory that the process occupies; 0 if it has ended."""
        return resident_bytes_of(self._process.pid)

    async def until_ended(self) -> int:
        """Wait until the process ends its side, or end it when cancelled; returns its exit code."""
        try:
            await self._gone.wait()
        finally:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            code = await asyncio.to_thread(end, self._process)
        return code

    def _read(self) -> None:
        try:
            piece = self._socket.recv(PART)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            self._loop.remove_reader(self._socket)
            self._gone.set()
        for message in self._frames.put(piece):
            self._on_message(message)

    def _write(self) -> None:
        # What it has said before its end can still be read when it no longer takes anything.
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if self._unsent:
            self._loop.add_writer(self._socket, self._write)
        elif self._socket.fileno() >= 0:
            self._loop.remove_writer(self._socket)

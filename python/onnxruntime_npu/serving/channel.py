"""Messages between processes over a socket: pickles, each after its length."""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct("!Q")
PART = 2**18  # bytes that are read at once


def framed(message: Any) -> bytes:
    """Return what is sent of a message."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


class Frames:
    """Puts messages together from what arrives in pieces of any length."""

    def __init__(self) -> None:
        self._held = bytearray()

    def put(self, piece: bytes) -> Iterator[Any]:
        """Take what has arrived; yields the messages that are complete."""
        self._held += piece
        begin = 0
        while len(self._held) >= begin + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._held, begin)
            end = begin + _LENGTH.size + length
            if len(self._held) < end:
                break
            # Its buffer is free again before anybody appends to it.
            with memoryview(self._held) as whole, whole[end - length : end] as content:
                message = pickle.loads(content)
            begin = end
            yield message
        del self._held[:begin]


class Channel:
    """The end of a process that waits for its messages.

    One thread may send while another one receives.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Take over a connected socket, which blocks."""
        self._socket = connected
        self._frames = Frames()
        self._received: list[Any] = []  # the next one last

    def send(self, message: Any) -> None:
        """Send a message; OSError if the other end is closed."""
        self._socket.sendall(framed(message))

    def recv(self) -> Any:
        """Wait for the next message; EOFError if the other end is closed."""
        while not self._received:
            piece = self._socket.recv(PART)
            if not piece:
                raise EOFError
            self._received = list(self._frames.put(piece))[::-1]
        return self._received.pop()

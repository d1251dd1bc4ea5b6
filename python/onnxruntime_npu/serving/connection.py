"""Connections of clients that do not say what they want."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class ImpatientProtocol(HttpToolsProtocol):
    """Closes a connection whose request does not begin, or whose head does not end, in time.

    Bodies are waited for by ``BodyLimit``, which can answer, idle connections by uvicorn.
    """

    seconds: ClassVar[float]
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._stop()

    def _wait(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def impatient_protocol(seconds: float) -> type[ImpatientProtocol]:
    """Return the protocol that waits for so many seconds."""
    return type("ImpatientProtocol", (ImpatientProtocol,), {"seconds": seconds})

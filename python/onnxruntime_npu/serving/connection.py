"""HTTP's connections, of clients that keep to its rules and of those that do not."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import httptools
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .api_errors import error_body

# Of a request, while neither its head ends nor a part of its body comes.
_MOST_BYTES = 2**16


class ImpatientProtocol(HttpToolsProtocol):
    """Closes a connection whose request does not begin, or whose head does not end, in time.

    A head that does not end after many bytes closes it, too. Bodies are waited for by
    ``BodyLimit``, idle connections by uvicorn. Clients that would rather go on in another protocol,
    as Java's with HTTP/2, are answered in this one, and those of HTTP/1.0 without chunks.
    """

    seconds: ClassVar[float]
    _timer: asyncio.TimerHandle | None = None
    _bytes = 0  # that have come since the parser has last called

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        self._unset_keepalive_if_required()
        self._bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(400, "bad_http", "expected a request of HTTP/1.1")
        if self._bytes > _MOST_BYTES:
            self._refuse(431, "head_too_large", f"expected a head of at most {_MOST_BYTES} bytes")
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._stop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._stop()

    def on_message_begin(self) -> None:
        """Take the beginning of a request."""
        self._bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Take the end of a head."""
        self._bytes = 0
        if not self._would_change:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        if not self._would_change:
            super().on_message_complete()

    @property
    def _would_change(self) -> bool:
        """Whether the client offers to go on in another protocol."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _parse(self, data: bytes) -> None:
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                # The parser leaves the body to the other protocol, and reads nothing any more.
                rest = rest[offer.args[0] :]
            if not self._would_change:
                self.cycle.keep_alive = False
                return
            head, self.parser = self._head_without_offer(), httptools.HttpRequestParser(self)
            self.parser.feed_data(head)

    def _head_without_offer(self) -> bytes:
        parser = self.parser
        first = (parser.get_method(), self.url, b"HTTP/" + parser.get_http_version().encode())
        headers = (b": ".join(each) for each in self.headers if each[0] != b"upgrade")
        return b"\r\n".join([b" ".join(first), *headers, b"", b""])

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        plain = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, _without_chunks(app, cycle) if plain else app)  # type: ignore[arg-type]

    def _refuse(self, status: int, code: str, message: str) -> None:
        if self.transport.is_closing():
            return
        answer = JSONResponse(error_body(status, code, message), status)
        answer.headers["connection"] = "close"
        head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.transport.write(b"HTTP/1.1 %d \r\n%s\r\n%s" % (status, head, answer.body))
        self.transport.close()

    def _wait(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _without_chunks(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Return an app whose answers of unknown length end with the connection."""

    async def unframed(scope: Scope, receive: Receive, send: Send) -> None:
        ends_with_connection = False

        async def send_unframed(message: Message) -> None:
            nonlocal ends_with_connection
            if message["type"] == "http.response.start":
                known = (name.lower() == b"content-length" for name, _ in message["headers"])
                ends_with_connection = not any(known)
                if ends_with_connection:
                    cycle.chunked_encoding = False
            elif ends_with_connection:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unframed)

    return unframed


def impatient_protocol(seconds: float) -> type[ImpatientProtocol]:
    """Return the protocol that waits for so many seconds."""
    return type("ImpatientProtocol", (ImpatientProtocol,), {"seconds": seconds})

"""What applies to every request: its identifier, access, the size of its body."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import re
import time
import uuid
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .api_errors import ApiError, shown
from .log_format import fields
from .metrics import Metrics

_LOG = logging.getLogger("onnxruntime_npu.serving")
_IDENTIFIER = re.compile(r"[A-Za-z0-9._-]{1,128}")
# A client that sends its whole body first sees a refusal only if the rest is read, up to this much.
_DRAINED = 64 * 2**20
_DRAINING_SECONDS = 10.0
# What monitors and load balancers read without a key, and the page, which asks for one.
_OPEN_PATHS = ("/", "/health", "/ready", "/metrics")


class RequestIds:
    """Gives each request an identifier, the client's own if it sent one, and logs the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        identifier = given if _IDENTIFIER.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = identifier
        started, status = time.monotonic(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = identifier
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            seconds = time.monotonic() - started
            level = logging.DEBUG if scope["path"] in _OPEN_PATHS else logging.INFO
            path = shown(scope["path"])  # a long one would fill the log
            _LOG.log(
                level,
                "%s %s %s: %s in %.3f s",
                identifier,
                scope["method"],
                quote(path),  # a line break in it would forge a line of the log
                status or "client gone",
                seconds,
                extra=fields(
                    request=identifier,
                    method=scope["method"],
                    path=path,
                    status=status or None,
                    seconds=round(seconds, 6),
                ),
            )


class Faults:
    """Answers with status 500 where the server fails, and logs why.

    Starlette's own answer is outside of all that is added here: it would lack the header without
    which pages of other origins cannot read it.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            self._metrics.errors.labels("internal_error").inc()
            if started:  # too late for a status: the connection is closed
                raise
            identifier = scope["state"]["request_id"]
            _LOG.exception("%s failed", identifier, extra=fields(request=identifier))
            message = f"the server failed; its log has request {identifier}"
            error = ApiError(500, "internal_error", message)
            await JSONResponse(error.body(), error.status_code)(scope, receive, send)


class ApiKey:
    """Refuses requests without ``Authorization: Bearer KEY``, except those of monitors."""

    def __init__(self, app: ASGIApp, key: str, metrics: Metrics) -> None:
        self._app = app
        self._expected = key.encode()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            header = dict(scope["headers"]).get(b"authorization", b"")
            scheme, _, given = header.partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given, self._expected):
                message = "expected the header Authorization: Bearer with this server's API key"
                error = ApiError(401, "invalid_api_key", message)
                error.headers = {"WWW-Authenticate": "Bearer"}
                return await _refuse(error, self._metrics, scope, receive, send)
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses bodies of more than ``limit`` bytes, whether or not their size is announced.

    Bodies that have not come after so many ``seconds`` are refused, too.
    """

    def __init__(self, app: ASGIApp, limit: int, seconds: float, metrics: Metrics) -> None:
        self._app, self._limit, self._seconds, self._metrics = app, limit, seconds, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        message = f"expected a body of at most {self._limit} bytes"
        error = ApiError(413, "body_too_large", message)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            return await _refuse(error, self._metrics, scope, receive, send)
        size, more = 0, True
        receive_in_time = _in_time(receive, self._seconds)

        async def receive_some() -> Message:
            nonlocal size, more
            part = await (receive_in_time() if more else receive())
            more = part.get("more_body", False)
            size += len(part.get("body", b""))
            if size > self._limit:
                await _drain(receive)
                raise error
            return part

        await self._app(scope, receive_some, send)


def _in_time(receive: Receive, seconds: float) -> Receive:
    """Return what receives a body; it raises a 408 when so many seconds have passed."""
    end = time.monotonic() + seconds

    async def receive_in_time() -> Message:
        try:
            return await asyncio.wait_for(receive(), end - time.monotonic())
        except asyncio.TimeoutError:
            message = f"the body of the request did not come within {seconds:g} seconds"
            raise ApiError(408, "body_timeout", message, closes=True) from None

    return receive_in_time


async def _refuse(
    error: ApiError, metrics: Metrics, scope: Scope, receive: Receive, send: Send
) -> None:
    metrics.errors.labels(error.code).inc()
    await _drain(receive)
    await JSONResponse(error.body(), error.status_code, error.headers)(scope, receive, send)


async def _drain(receive: Receive) -> None:
    receive_in_time = _in_time(receive, _DRAINING_SECONDS)
    size, more = 0, True
    with contextlib.suppress(ApiError):  # it is answered before it has sent all
        while more and size < _DRAINED:
            part = await receive_in_time()
            size += len(part.get("body", b""))
            more = part.get("more_body", False)

"""Bodies of requests, bounded before they are parsed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from .api_errors import ApiError, bad_request, shown

# While a body is parsed, nobody gets a token. Texts cost little, but a body of the default size has
# room for more than a million lists, which take seconds.
_MOST_VALUES, _MOST_CONTAINERS = 1_000_000, 50_000
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")  # of a pair, or alone


class BoundedRoute(APIRoute):
    """A path whose bodies are bounded, and which answers HEAD where it answers GET."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.methods and "GET" in self.methods:
            self.methods.add("HEAD")

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            return await handle(_BoundedRequest(request.scope, request.receive))

        return handle_bounded


class _BoundedRequest(Request):
    async def json(self) -> Any:
        for name, plain in (("Content-Encoding", "identity"), ("Transfer-Encoding", "chunked")):
            if (encoding := self.headers.get(name, plain)).lower() != plain:
                message = f"expected a body that is not compressed, got {name}: {shown(encoding)}"
                raise ApiError(415, "unsupported_encoding", message)
        return parsed(await self.body())


def parsed(body: bytes) -> Any:
    """Return what JSON says.

    Raises a 400 for too many values, and for text that is none; ValueError for what is no JSON.
    """
    containers, commas = _counts(body)
    if containers > _MOST_CONTAINERS or commas > _MOST_VALUES:  # perhaps those in texts
        plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
        containers, commas = _counts(b"".join(plain.split(b'"')[::2]))
    if containers > _MOST_CONTAINERS:
        message = f"expected at most {_MOST_CONTAINERS} lists and objects, got {containers}"
        raise bad_request(message)
    if commas > _MOST_VALUES:
        raise bad_request(f"expected at most {_MOST_VALUES} values, got {commas}")
    # Bytes would be decoded with half characters, and in other encodings.
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"expected a body in UTF-8, got {body[error.start]:#04x} at byte {error.start}"
        raise bad_request(message, code="bad_body") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        message = "expected lists and objects that are nested less deeply"
        raise bad_request(message, code="bad_body") from None
    except ValueError:
        digits = sys.get_int_max_str_digits()
        message = f"expected a number of at most {digits} digits"
        raise bad_request(message, code="bad_body") from None
    if _HALF_CHARACTER.search(body):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            message = "the body has half of a surrogate pair, which is no character"
            raise bad_request(message) from None
    return value


def _counts(body: bytes) -> tuple[int, int]:
    """Return the numbers of lists and objects that begin, and of commas."""
    return body.count(b"[") + body.count(b"{"), body.count(b",")

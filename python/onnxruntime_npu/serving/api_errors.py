"""Errors of the interface, in OpenAI's shape."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException

_SHOWN = 100  # characters of what a client has written, in a message
_LONGEST = 2000  # characters of a message


class ApiError(HTTPException):
    """An answer other than success.

    ``code`` is a stable name of the kind of error, ``param`` the field of the request that caused
    it; ``retry_after`` is in seconds; ``closes``: the connection is closed behind it.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
        closes: bool = False,
    ) -> None:
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        if closes:
            headers["Connection"] = "close"
        super().__init__(status, message, headers)
        self.code, self.param = code, param

    def body(self) -> dict[str, Any]:
        """Return what the client is sent."""
        return error_body(self.status_code, self.code, self.detail, self.param)


def shown(text: str) -> str:
    """Return a text of a client, the beginning of a long one, for a message."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def error_body(status: int, code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Return an error as OpenAI's clients read it; what the client has written may be long."""
    if len(message) > _LONGEST:
        message = f"{message[: _LONGEST - 1]}…"
    param = param if param is None else shown(param)
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    if status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def bad_request(message: str, *, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """Return the error of a request that cannot be meant."""
    return ApiError(400, code, message, param=param)


def too_long(most: int, got: str, *, param: str) -> ApiError:
    """Return the error of what does not fit into the model's context of ``most`` tokens.

    LiteLLM and LangChain know by the words before the colon that a shorter prompt would do.
    """
    message = f"the prompt is too long: expected at most {most} tokens, got {got}"
    return bad_request(message, param=param, code="context_length_exceeded")


def deadline_exceeded(seconds: float) -> ApiError:
    """Return the error of a request that takes too long."""
    return ApiError(504, "deadline_exceeded", f"the request did not end within {seconds:g} seconds")

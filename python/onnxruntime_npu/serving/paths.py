"""What is said of paths and methods that are not served."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from fastapi.routing import APIRoute

from .api_errors import ApiError, shown
from .routes import router

# Of OpenAI's interface: what a client is to do instead.
_INSTEAD = {
    "/v1/responses/compact": "send /v1/responses what is to stay of the conversation",
    "/v1/responses": "responses are not stored: read the answer to POST /v1/responses",
}


def not_found(request: Request) -> ApiError:
    """Return the error of a path that is not served."""
    path = request.url.path
    for known, reason in _INSTEAD.items():
        if path.startswith(f"{known}/") and path != "/v1/responses/":
            return ApiError(404, "not_found", f"{shown(path)} is not served: {reason}")
    served = ", ".join(
        route.path for route in router.routes if isinstance(route, APIRoute) and route.path != "/"
    )
    return ApiError(404, "not_found", f"expected a path among {served}, got {shown(path)}")


def method_not_allowed(request: Request, headers: Mapping[str, str] | None) -> ApiError:
    """Return the error of a path that is served to other methods; ``headers`` name these."""
    allowed = (headers or {}).get("Allow", "another method")
    path = shown(request.url.path)
    message = f"expected {allowed} for {path}, got {request.method}"
    return ApiError(405, "method_not_allowed", message)

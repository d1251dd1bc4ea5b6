"""The application: paths, what applies to all of them, errors in OpenAI's shape."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from ..version import __version__
from .api_errors import ApiError, error_body
from .body_mistakes import told_mistake
from .disconnection import ClientGone
from .middleware import ApiKey, BodyLimit, Faults, RequestIds
from .paths import method_not_allowed, not_found
from .routes import router
from .service import Service


def service_app(service: Service) -> FastAPI:
    """Return the application; its lifespan starts and stops the processes of the models."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        for process in service.processes:
            process.start()
        try:
            yield
        finally:
            for process in service.processes:
                await process.stop()
            if service.grammars is not None:
                await service.grammars.stop()

    # Without FastAPI's own pages, whose scripts come from elsewhere.
    app = FastAPI(
        title="onnxruntime-npu",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # A redirection would name the client's host, without a proxy's scheme and path.
        redirect_slashes=False,
    )
    app.state.service = service
    app.include_router(router)
    settings, metrics = service.settings, service.metrics
    # What is added last sees a request first.
    app.add_middleware(
        BodyLimit, limit=settings.max_body, seconds=settings.patience, metrics=metrics
    )
    if settings.api_key is not None:
        app.add_middleware(ApiKey, key=settings.api_key, metrics=metrics)
    app.add_middleware(Faults, metrics=metrics)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(RequestIds)

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> JSONResponse:
        headers = error.headers  # of a wrong method: those that are allowed
        if not isinstance(error, ApiError):
            error = _told(request, error)
        metrics.errors.labels(error.code).inc()
        return JSONResponse(error.body(), error.status_code, headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_body(_: Request, error: RequestValidationError) -> JSONResponse:
        param, message = told_mistake(error.errors()[0], error.body)
        metrics.errors.labels("invalid_value").inc()
        return JSONResponse(error_body(400, "invalid_value", message, param), 400)

    @app.exception_handler(ClientGone)
    async def note_absence(_: Request, error: ClientGone) -> Response:
        metrics.cancelled.inc()
        return Response(status_code=499)  # nobody reads it

    return app


def _told(request: Request, error: HTTPException) -> ApiError:
    """Return the framework's error with what was expected."""
    if error.status_code == 404:
        return not_found(request)
    if error.status_code == 405:
        return method_not_allowed(request, error.headers)
    return ApiError(error.status_code, "bad_body", str(error.detail))

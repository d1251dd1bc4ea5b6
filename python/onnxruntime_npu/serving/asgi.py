"""The service as an application of ASGI, for a server that is not ``onnxruntime-npu serve``."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from ..errors import ArgumentError, ServingError
from .app import service_app
from .service import open_service
from .settings import Settings, api_key

_START_POLL_SECONDS = 0.1
# What the server of `onnxruntime-npu serve` does with a connection, and its log.
_OF_SERVER = {"host", "port", "ssl_certfile", "ssl_keyfile", "log_format"}
_OPTIONS = [field.name for field in dataclasses.fields(Settings) if field.name not in _OF_SERVER]


def create_app(out_dir: str | Path, **options: Any) -> FastAPI:
    """Return the service of an exported directory as an application.

    ``uvicorn.run(create_app("out"))`` serves it. Its start ends when the models are ready, and its
    end stops their processes. Clients have to send the key that the environment variable
    ORT_NPU_API_KEY has, if it is set.

    Args:
        out_dir: directory that ``export --cache paged`` or ``export-encoder`` wrote.
        options: as the options of ``onnxruntime-npu serve``: provider ("NPUExecutionProvider"),
            device, ranks, model_name, embeddings (directory of an encoder), api_key, cors_origins,
            max_queue (requests), prompt_lookup_num_tokens, deadline (seconds), max_body (bytes).

    Raises:
        ArgumentError: for a directory that cannot be served, or an unknown option.
        ModuleNotFoundError: for want of a package of the extra ``serve``.
        ServingError: when the application starts and an engine does not.
    """
    for name in options:
        if name not in _OPTIONS:
            raise ArgumentError(
                f"create_app expected options of {', '.join(_OPTIONS)}, got {name!r}"
            )
    options.setdefault("api_key", api_key())
    options["cors_origins"] = tuple(options.get("cors_origins", ()))
    unusable: list[str] = []
    service = open_service(out_dir, Settings(**options), unusable.append)
    app = service_app(service)
    app.state.unusable = unusable
    begin = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: FastAPI) -> AsyncIterator[Any]:
        unusable.clear()  # of an earlier start
        async with begin(started) as state:
            while not all(process.ready for process in service.processes):
                if unusable:
                    raise ServingError(unusable[0])
                await asyncio.sleep(_START_POLL_SECONDS)
            yield state

    app.router.lifespan_context = lifespan
    return app

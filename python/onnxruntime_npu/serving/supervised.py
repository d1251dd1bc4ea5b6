"""The process of a model, started again when it fails."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from .api_errors import ApiError
from .child_connection import ChildConnection
from .child_process import Failed
from .metrics import Metrics
from .settings import Settings

_LOG = logging.getLogger("onnxruntime_npu.serving")
# Pauses before a process is started again after failures in a row, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0

Limits = TypeVar("Limits")  # what the process says when it is ready


class Supervised(ABC, Generic[Limits]):
    """Starts a process, again when it fails, and sends to it. All on the event loop.

    Attributes:
        name: of the process, for messages.
        module: what it runs.
    """

    name: ClassVar[str]
    module: ClassVar[str]

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        metrics: Metrics,
        on_unusable: Callable[[str], None],
    ) -> None:
        """Prepare to run the model of a directory, on the provider and device of the settings.

        ``on_unusable`` is called, with the reason, if the process fails before it has been ready
        once.
        """
        self._arguments = [str(directory), settings.provider, str(settings.device)]
        self._limits: Limits | None = None  # of the running process, once it is ready
        self._metrics = metrics
        self._on_unusable = on_unusable
        self._connection: ChildConnection | None = None
        self._reason = ""  # of the last failure
        self._supervisor: asyncio.Task[None] | None = None

    @abstractmethod
    def _take(self, message: Any) -> None:
        """Take a message of the process; that it is ready sets ``_limits``."""

    @abstractmethod
    def _fail_all(self, error: ApiError) -> None:
        """End what waits for the process, which has ended."""

    @property
    def ready(self) -> bool:
        """Whether the running process has said so."""
        return self._limits is not None

    def limits(self) -> Limits:
        """Return the limits of the running process; ApiError 503 if none is ready."""
        if self._limits is None:
            raise self.unavailable()
        return self._limits

    def start(self) -> None:
        """Begin to start the process."""
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def stop(self) -> None:
        """End the process, which may be started again; requests that are left fail."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self._supervisor = self._connection = self._limits = None
        self._reason = ""
        self._fail_all(ApiError(503, "engine_unavailable", f"the {self.name} has been stopped"))

    def resident_bytes(self) -> int:
        """Return the memory of the process; 0 if none runs."""
        return 0 if self._connection is None else self._connection.resident_bytes()

    def unavailable(self) -> ApiError:
        """Return the error of requests while no process is ready."""
        again = f" again: {self._reason}" if self._reason else ""
        message = f"the {self.name} is starting{again}"
        return ApiError(503, "engine_unavailable", message, retry_after=2)

    def _send(self, message: Any) -> None:
        # When the process has ended, its supervisor fails the requests.
        if self._connection is not None:
            self._connection.send(message)

    async def _supervise(self) -> None:
        pause, usable = _FIRST_PAUSE, False
        while True:
            await self._run_process()
            failed_at_once = not self.ready
            usable = usable or not failed_at_once
            self._connection = self._limits = None
            reason = self._reason = self._reason or "its process ended"
            self._fail_all(ApiError(503, "engine_failed", f"the {self.name} failed: {reason}"))
            if not usable:
                self._on_unusable(f"the {self.name} does not start: {reason}")
                return
            _LOG.error("the %s failed: %s", self.name, reason)
            pause = min(2 * pause, _LONGEST_PAUSE) if failed_at_once else _FIRST_PAUSE
            await asyncio.sleep(pause)
            self._metrics.engine_restarts.inc()

    async def _run_process(self) -> None:
        """Start the process and return when it has ended."""
        self._reason = ""
        try:
            self._connection = ChildConnection(self.module, self._arguments, self._receive)
        except OSError as error:
            self._reason = f"its process does not start: {error}"
            return
        code = await self._connection.until_ended()
        if code != 0 and not self._reason:
            self._reason = f"its process ended with code {code}"

    def _receive(self, message: Any) -> None:
        if isinstance(message, Failed):
            self._reason = message.reason
        else:
            self._take(message)

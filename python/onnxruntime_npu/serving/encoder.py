"""An encoder as the server's event loop sees it: vectors from another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .api_errors import ApiError, deadline_exceeded
from .encoder_messages import Embed, Embedded, EncoderReady
from .engine_messages import Cancel
from .metrics import Metrics
from .settings import Settings
from .supervised import Supervised


class _Waiting:
    """A request whose vectors come one after the other."""

    def __init__(self, rows: int) -> None:
        self.vectors: list[bytes] = [b""] * rows
        self.left = rows
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Encoder(Supervised[EncoderReady]):
    """Hands texts to the process of an encoder."""

    name = "encoder"
    module = "onnxruntime_npu.serving.encoder_process"

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        metrics: Metrics,
        on_unusable: Callable[[str], None],
    ) -> None:
        super().__init__(directory, settings, metrics, on_unusable)
        self._max_waiting = settings.max_queue + 1  # beside the queue, the one that is answered
        self._waiting: dict[int, _Waiting] = {}
        metrics.embedding.set_function(lambda: len(self._waiting))
        self._next_key = 0

    async def embed(self, rows: list[list[int]], deadline: float) -> list[bytes]:
        """Return the vector, float32 numbers as bytes, of each row of tokens.

        Raises ApiError: 503 while the process is not ready or when it fails, 429 when too many
        requests wait, 504 after ``deadline`` seconds.
        """
        self.limits()
        if len(self._waiting) >= self._max_waiting:
            message = f"{len(self._waiting)} requests are waiting: try again later"
            raise ApiError(429, "queue_full", message, retry_after=1)
        self._next_key += 1
        key = self._next_key
        self._waiting[key] = waiting = _Waiting(len(rows))
        self._send(Embed(key, rows))
        try:
            await asyncio.wait_for(waiting.done, deadline)
        except asyncio.TimeoutError:
            raise deadline_exceeded(deadline) from None
        finally:
            del self._waiting[key]
            if waiting.left:
                self._send(Cancel(key))
        return waiting.vectors

    def _take(self, message: Any) -> None:
        if isinstance(message, EncoderReady):
            self._limits = message
        elif isinstance(message, Embedded):
            for key, row, vector in message.vectors:
                waiting = self._waiting.get(key)
                if waiting is None:
                    continue
                waiting.vectors[row] = vector
                waiting.left -= 1
                if not waiting.left and not waiting.done.done():
                    waiting.done.set_result(None)
            for key, reason in message.failed:
                self._fail(key, ApiError(500, "generation_failed", reason))

    def _fail_all(self, error: ApiError) -> None:
        for key in self._waiting:
            self._fail(key, error)

    def _fail(self, key: int, error: ApiError) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done.done():
            waiting.done.set_exception(error)

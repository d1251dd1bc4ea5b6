"""The engine of a model that several ranks compute together."""

from __future__ import annotations

from typing import Any

from .child_connection import resident_bytes_of
from .engine import Engine
from .engine_messages import RanksStarted


class RankedEngine(Engine):
    """Hands requests to the process that leads the ranks."""

    module = "onnxruntime_npu.serving.leader_process"
    _ranks: tuple[int, ...] = ()  # their processes

    def resident_bytes(self) -> int:
        """Return the memory of the leading process and of the ranks; 0 if none runs."""
        if self._connection is None:
            return 0
        return super().resident_bytes() + sum(map(resident_bytes_of, self._ranks))

    def _take(self, message: Any) -> None:
        if isinstance(message, RanksStarted):
            self._ranks = tuple(message.processes)
        else:
            super()._take(message)

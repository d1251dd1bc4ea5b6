"""Numbers that a call draws on the host from the default generator of its tensors' device."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .samples import check


class _Source(NamedTuple):
    seed: Callable[[int], int]
    position: Callable[[int, int], tuple[int, int]]


_sources: dict[str, _Source] = {}


def draw_with(
    device_type: str,
    seed: Callable[[int], int],
    position: Callable[[int, int], tuple[int, int]],
) -> None:
    """Let these provide the numbers of calls on tensors of a device type, by the device's index."""
    _sources[device_type] = _Source(seed, position)


class Draws:
    """The generator of one call. A traced call, which would keep a number, draws none."""

    def __init__(self, op: str, arguments: Mapping[str, Any]):
        self._op = op
        self._arguments = arguments

    def seed(self) -> int:
        """Return a nonzero number.

        Raises:
            ArgumentError: the call is being traced.

        """
        source, index = self._source()
        return source.seed(index) if source else self._of_torch()

    def position(self, blocks: int) -> tuple[int, int]:
        """Take blocks of four numbers; returns the generator's seed and offset.

        The seed is not 0. The CPU's generator has no positions: from it, a seed is drawn.

        Raises:
            ArgumentError: the call is being traced.

        """
        source, index = self._source()
        return source.position(index, blocks) if source else (self._of_torch(), 0)

    def _source(self) -> tuple[_Source | None, int]:
        torch = importlib.import_module("torch")
        check(
            type(torch.empty(0)) is torch.Tensor,
            f"[{self._op}] expected a seed in a traced call, got 0: the trace would keep the "
            "number that is drawn",
        )
        for value in self._arguments.values():
            if isinstance(value, torch.Tensor) and value.device.type in _sources:
                return _sources[value.device.type], value.device.index
        return None, -1

    def _of_torch(self) -> int:
        torch = importlib.import_module("torch")
        return int(torch.randint(1, 2**63 - 1, (1,)))

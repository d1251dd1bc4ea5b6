"""Detects reuse of memory that another stream may still access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["MemoryReuse"]


class MemoryReuse:
    """Records accesses of streams to memory until it is reused for another tensor.

    The allocator reuses a freed block for the next tensor of its stream, in stream order. Another
    stream's work on the old tensor must therefore be ordered before the allocating stream, by a
    wait or by ``record_stream``.

    Args:
        handler: torch's record of accesses and orders (``torch.cuda._sanitizer.EventHandler``).
    """

    def __init__(self, handler: Any) -> None:
        self._accesses = handler.tensors_accessed
        self._syncs = handler.syncs
        self._owners: dict[int, int] = {}  # start of a block -> the stream that allocated it
        self._used: dict[int, tuple[int, int | None]] = {}  # address -> end, owner of its block
        self._recorded: list[tuple[int, int, int]] = []  # begin, end, stream to wait for

    def used(self, address: int, end: int, block: int) -> None:
        """Note that a tensor at ``address``, in the block that starts at ``block``, is used."""
        before = self._used.get(address, (0, None))[0]
        self._used[address] = max(before, end), self._owners.get(block)

    def recorded(self, begin: int, end: int, stream: int) -> None:
        """Note that the block's memory is kept until ``stream`` has done its work on it."""
        self._recorded.append((begin, end, stream))

    def begin(self, begin: int, end: int, stream: int) -> Iterator[tuple[int, Any]]:
        """Forget the accesses to ``[begin, end)``; yield those not ordered before ``stream``.

        Memory owned by another stream was returned to the device first, which waits for all work.
        """
        known = self._known_to(stream, begin, end)
        for address, (used_to, owner) in list(self._used.items()):
            if address >= end or used_to <= begin:
                continue
            del self._used[address]
            info = self._accesses.accesses.pop(address, None)
            if info is None or (owner is not None and owner != stream):
                continue
            for access in (*info.reads, info.write):
                if access is not None and access.seq_num > known.get(access.stream, -1):
                    yield address, access
        self._owners[begin] = stream

    def _known_to(self, stream: int, begin: int, end: int) -> dict[int, int]:
        """The last access by each stream that completes before ``[begin, end)`` is reused."""
        self._syncs._ensure_stream_exists(stream)
        known = dict(self._syncs.current_sync_states[stream])
        rest: list[tuple[int, int, int]] = []
        for first, last, waited in self._recorded:
            if first >= end or last <= begin:
                rest.append((first, last, waited))
                continue
            self._syncs._ensure_stream_exists(waited)
            self._syncs._state_wait_for_other(known, self._syncs.current_sync_states[waited])
            rest += [(first, begin, waited)] * (first < begin) + [(end, last, waited)] * (
                last > end
            )
        self._recorded = rest
        return known

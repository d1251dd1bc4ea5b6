"""Groups of captured tasks that can be replaced between replays."""

from __future__ import annotations

from typing import Any

from .. import _C
from ._arguments import stream_handle
from .streams import Stream


def _stream(stream: Stream) -> Any:
    return _C.find_stream(stream.device_index, stream_handle(stream))


def graph_task_group_begin(stream: Stream) -> None:
    """Begin a group of tasks, on a capturing stream, that can be replaced between replays.

    Raises:
        RuntimeError: the stream is not capturing.
    """
    _C.graph_group_begin(_stream(stream))


def graph_task_group_end(stream: Stream) -> Any:
    """End the group and return its handle.

    Raises:
        RuntimeError: no group was begun.
    """
    return _C.graph_group_end(_stream(stream))


def graph_task_update_begin(stream: Stream, handle: Any) -> None:
    """Replace a group by the next operators on ``stream``: the same ones in the same order.

    The replacement takes effect as a whole at graph_task_update_end().

    Raises:
        RuntimeError: the stream is capturing, or the group's graph was destroyed.
    """
    _C.graph_update_begin(_stream(stream), handle)


def graph_task_update_end(stream: Stream) -> None:
    """End the replacement.

    Raises:
        RuntimeError: it was not begun, or operators are missing; the group is then unchanged.
    """
    _C.graph_update_end(_stream(stream))

"""Graphs: launches captured once and replayed as one submission."""

from __future__ import annotations

import gc
import json
import os
import warnings
from typing import TYPE_CHECKING, Any

from .. import _C
from . import _npugraph_utils, super_kernel_options
from .devices import synchronize
from .graph_tasks import (
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
)
from .memory import empty_cache, new_pool_id
from .streams import Stream, StreamContext

if TYPE_CHECKING:
    from .graph_updates import UpdatableCalls

__all__ = [
    "NPUGraph",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "is_current_stream_capturing",
]


def is_current_stream_capturing() -> bool:
    """Return whether a capture is open on the calling thread's current stream."""
    return _C.is_capturing(_C.current_stream(_C.current_device()))


def graph_pool_handle() -> tuple[int, int]:
    """Return the id of a new memory pool that graphs may share."""
    return new_pool_id()


class NPUGraph:
    """Work of a stream, captured once and replayed any number of times, at the same addresses.

    The caller keeps alive the tensors and the pinned memory from outside the capture that it uses.
    Calls that cannot be replayed raise inside the capture and invalidate it: waits, runs of
    sessions, copies from and to host memory that is not pinned.
    """

    def __init__(self) -> None:
        self._graph = _C.Graph()
        self._updates: UpdatableCalls | None = None

    def capture_begin(
        self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Capture the current stream from now on, instead of running its work.

        Args:
            pool: id of graph_pool_handle() or of another graph's pool(); default a new one.
            capture_error_mode: which threads' waits for the whole device fail meanwhile:
                ``"global"`` (all), ``"thread_local"`` (this thread's) or ``"relaxed"`` (none).

        Raises:
            RuntimeError: unknown mode; the stream is a default one or already capturing; this graph
                already holds a capture.
        """
        self._graph.capture_begin((0, 0) if pool is None else tuple(pool), capture_error_mode)

    def capture_end(self) -> None:
        """End the capture, on the stream that began it; warns if it is empty.

        Raises:
            RuntimeError: another stream; no capture open; a call during the capture was illegal.
        """
        self._graph.capture_end()
        if len(self) == 0:
            warnings.warn(
                "The NPU Graph is empty: a replay does nothing. This usually means that the work "
                "was launched on another device or stream than that of the capture",
                stacklevel=2,
            )

    def replay(self) -> None:
        """Launch the captured work on the current stream.

        Raises:
            RuntimeError: nothing was captured.
        """
        self._graph.replay()

    def reset(self) -> None:
        """Release the captured work and its memory; the object can capture again."""
        self._graph.reset()
        self._updates = None

    def pool(self) -> tuple[int, int]:
        """Return the id of the graph's memory pool.

        Raises:
            RuntimeError: nothing was captured.
        """
        return self._graph.pool()

    def enable_debug_mode(self) -> None:
        """Accepted: debug_dump() needs no preparation."""

    def debug_dump(self, debug_path: str | os.PathLike[str]) -> None:
        """Write the graph as JSON: its operators, streams and dependencies.

        A second file, ``<name>.aligned.json`` for ``<name>.json``, has one operator per line; a
        failure to write it only warns. Without a captured graph there is a warning and no file.
        """
        if not self._graph.captured:
            warnings.warn("debug_dump: nothing was captured, no file is written", stacklevel=2)
            return
        with open(debug_path, "w") as file:
            json.dump(json.loads(self._graph.json()), file)
        try:
            _npugraph_utils.align_trace_json(debug_path, None)
        except Exception as error:
            warnings.warn(f"debug_dump: no aligned file of {debug_path}: {error}", stacklevel=2)
        warnings.warn(f"debug_dump: the graph was written to {debug_path}", stacklevel=2)

    def register_generator_state(self, generator: Any) -> None:
        """Deprecated, does nothing."""

    def super_kernel_optimize(
        self,
        optimize_options: dict[str, Any] | None = None,
        debug_options: dict[str, Any] | None = None,
    ) -> None:
        """Check the options, which have no effect: the host NPU has no super kernels.

        Raises:
            RuntimeError: an option is unknown or of another type.
        """
        super_kernel_options.check("optimize_options", optimize_options)
        super_kernel_options.check("debug_options", debug_options)

    def update(self, cpu_update_input: list[dict[str, Any]]) -> None:
        """Set new host-side arguments of captured operators, for one replay.

        This concerns operators that take lists of lengths. A replay waits at each of them until it
        is updated, so each replay needs one update, before or after its launch.

        Args:
            cpu_update_input: new values by argument name: one dict for all operators, or one per
                operator in the order of their capture.

        Raises:
            RuntimeError: the capture was made without ``auto_dispatch_capture=True``; the list has
                another length; no operator has such an argument.
        """
        if self._updates is None:
            raise RuntimeError(
                "The current graph configuration does not support update, try to capture by "
                "setting auto_dispatch_capture=True during capture"
            )
        self._updates.update(cpu_update_input)

    def __len__(self) -> int:
        return len(self._graph)


class graph:
    """Context manager that captures the work launched within it.

    Args:
        npu_graph: the NPUGraph to capture into.
        pool: see NPUGraph.capture_begin.
        stream: to capture on; default one that all captures share.
        auto_dispatch_capture: whether to enable NPUGraph.update.
        capture_error_mode: see NPUGraph.capture_begin.

    Raises:
        RuntimeError: see NPUGraph.capture_begin and capture_end.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        npu_graph: NPUGraph,
        pool: tuple[int, int] | None = None,
        stream: Stream | None = None,
        auto_dispatch_capture: bool = False,
        capture_error_mode: str = "global",
    ) -> None:
        if stream is None and graph.default_capture_stream is None:
            graph.default_capture_stream = Stream()
        self.npu_graph = npu_graph
        self.pool = pool
        self.capture_stream = stream if stream is not None else graph.default_capture_stream
        self.capture_error_mode = capture_error_mode
        self._updates: UpdatableCalls | None = None
        if auto_dispatch_capture:
            from .graph_updates import UpdatableCalls

            self._updates = UpdatableCalls()
        self._stream_context = StreamContext(self.capture_stream)

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        empty_cache()
        self._stream_context.__enter__()
        try:
            self.npu_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._stream_context.__exit__(None, None, None)
            raise
        self.npu_graph._updates = self._updates
        if self._updates is not None:
            self._updates.__enter__()

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            if self._updates is not None:
                self._updates.__exit__(None, None, None)
            self.npu_graph.capture_end()
        except RuntimeError:
            if failure is None:  # otherwise the inner failure explains the invalid capture
                raise
        finally:
            self._stream_context.__exit__(None, None, None)

"""Graphs: launches captured once and replayed as one submission."""

from __future__ import annotations

import gc
import json
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .. import _C
from . import super_kernel_options
from ._arguments import stream_handle
from .devices import synchronize
from .memory import empty_cache, new_pool_id
from .streams import Stream, StreamContext

__all__ = [
    "NPUGraph",
    "graph",
    "graph_pool_handle",
    "graph_task_group_begin",
    "graph_task_group_end",
    "graph_task_update_begin",
    "graph_task_update_end",
    "is_current_stream_capturing",
    "make_graphed_callables",
]


def is_current_stream_capturing() -> bool:
    """Return whether a capture is open on the calling thread's current stream."""
    return _C.is_capturing(_C.current_stream(_C.current_device()))


def graph_pool_handle() -> tuple[int, int]:
    """Return the id of a new memory pool that graphs may share."""
    return new_pool_id()


class NPUGraph:
    """Work of a stream, captured once and replayed as often as wanted, at the same addresses.

    Kernels that a capture launched must stay: keep the session or the module that made them.
    """

    def __init__(self) -> None:
        self._graph = _C.Graph()

    def capture_begin(
        self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Capture the current stream from now on, instead of running its work.

        Args:
            pool: id of graph_pool_handle() or of another graph's pool(); default one of its own.
            capture_error_mode: whose waits for the whole device fail meanwhile: ``"global"``,
                ``"thread_local"`` (this thread's) or ``"relaxed"`` (nobody's).

        Raises:
            RuntimeError: unknown mode; the stream is a default one or captured already; this graph
                holds a capture.
        """
        self._graph.capture_begin((0, 0) if pool is None else tuple(pool), capture_error_mode)

    def capture_end(self) -> None:
        """End the capture, on the stream that began it.

        Raises:
            RuntimeError: another stream; no capture open; a call during the capture was illegal.
        """
        self._graph.capture_end()

    def replay(self) -> None:
        """Launch the captured work on the current stream.

        Raises:
            RuntimeError: nothing was captured.
        """
        self._graph.replay()

    def reset(self) -> None:
        """Drop the captured work and the hold on its memory; the object can capture again."""
        self._graph.reset()

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

        A second file, ``<path>.aligned.json``, has one operator a line. Without a captured graph
        there is a warning and no file.
        """
        if not self._graph.captured:
            warnings.warn("debug_dump: nothing was captured, no file is written", stacklevel=2)
            return
        facts = json.loads(self._graph.json())
        with open(debug_path, "w") as file:
            json.dump(facts, file)
        nodes = ",\n".join(f"  {json.dumps(node)}" for node in facts.pop("nodes"))
        head = json.dumps(facts)[:-1]
        with open(f"{os.fspath(debug_path)}.aligned.json", "w") as file:
            file.write(f'{head}, "nodes": [\n{nodes}\n]}}\n')
        warnings.warn(f"debug_dump: the graph was written to {debug_path}", stacklevel=2)

    def register_generator_state(self, generator: Any) -> None:
        """Deprecated, does nothing."""

    def super_kernel_optimize(
        self,
        optimize_options: dict[str, Any] | None = None,
        debug_options: dict[str, Any] | None = None,
    ) -> None:
        """Check the options; the host NPU has no super kernels, whose fusion they would direct.

        Raises:
            RuntimeError: an option is unknown or of another type.
        """
        super_kernel_options.check("optimize_options", optimize_options)
        super_kernel_options.check("debug_options", debug_options)

    def update(self, cpu_update_input: list[dict[str, Any]]) -> None:
        """Not supported: replace operators of a task group with graph_task_update_begin.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "NPUGraph.update is not supported; capture the operators in a graph_task_group and "
            "issue them anew between graph_task_update_begin and graph_task_update_end"
        )

    def __len__(self) -> int:
        return len(self._graph)


class graph:
    """Context manager that captures what is done within it.

    Args:
        npu_graph: the NPUGraph to capture into.
        pool: see NPUGraph.capture_begin.
        stream: to capture on; default one that all captures share.
        auto_dispatch_capture: must be False: see NPUGraph.update.
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
        if auto_dispatch_capture:
            raise NotImplementedError("auto_dispatch_capture=True is not supported")
        if stream is None and graph.default_capture_stream is None:
            graph.default_capture_stream = Stream()
        self.npu_graph = npu_graph
        self.pool = pool
        self.capture_stream = stream if stream is not None else graph.default_capture_stream
        self.capture_error_mode = capture_error_mode
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

    def __exit__(self, *_: object) -> None:
        try:
            self.npu_graph.capture_end()
        finally:
            self._stream_context.__exit__(None, None, None)


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
    """From now on operators on ``stream`` replace those of a group, the same in the same order.

    Raises:
        RuntimeError: the stream is capturing, or the group's graph is gone.
    """
    _C.graph_update_begin(_stream(stream), handle)


def graph_task_update_end(stream: Stream) -> None:
    """End the replacement.

    Raises:
        RuntimeError: it was not begun, or operators are missing.
    """
    _C.graph_update_end(_stream(stream))


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | None = None,
) -> Any:
    """Capture callables on npu tensors and return ones that replay, for inference.

    A graphed callable copies its arguments into static buffers, replays, and returns the static
    outputs, which the next call overwrites. Where gradients are wanted it runs the original.

    Args:
        callables: a function or module, or a tuple of them that share one memory pool.
        sample_args: a tuple of tensors, or a tuple of such tuples.
        num_warmup_iters: runs before the capture.
        allow_unused_input: accepted.
        pool: see NPUGraph.capture_begin.

    Raises:
        RuntimeError: autocast caches casts; an argument is no tensor; the counts differ.
    """
    import torch

    single = not isinstance(callables, tuple)
    functions: Sequence[Callable[..., Any]] = (callables,) if single else callables
    samples: Sequence[Sequence[Any]] = (sample_args,) if single else sample_args
    if len(functions) != len(samples):
        raise RuntimeError(
            f"expected sample_args for {len(functions)} callables, got {len(samples)}"
        )
    if torch.is_autocast_enabled("npu") and torch.is_autocast_cache_enabled():
        raise RuntimeError(
            "make_graphed_callables does not support the autocast caching. "
            "Please set `cache_enabled=False`."
        )
    for arguments in samples:
        if not all(isinstance(a, torch.Tensor) for a in arguments):
            raise RuntimeError("make_graphed_callables: expected tensors only in sample_args")
    pool = graph_pool_handle() if pool is None else pool
    graphed = [
        _graphed(function, arguments, num_warmup_iters, pool)
        for function, arguments in zip(functions, samples, strict=True)
    ]
    return graphed[0] if single else tuple(graphed)


def _graphed(
    function: Callable[..., Any],
    samples: Sequence[Any],
    warmup: int,
    pool: tuple[int, int],
) -> Callable[..., Any]:
    import torch

    is_module = isinstance(function, torch.nn.Module)
    original = function.forward if is_module else function  # type: ignore[attr-defined]
    captured_training = function.training if is_module else False  # type: ignore[attr-defined]
    static = [a.detach().clone() for a in samples]
    captured = NPUGraph()
    with torch.no_grad():
        for _ in range(warmup):
            original(*static)
        with graph(captured, pool):
            outputs = original(*static)

    def replay(*arguments: Any) -> Any:
        parameters = function.parameters() if is_module else ()  # type: ignore[attr-defined]
        wants_gradient = torch.is_grad_enabled() and any(
            t.requires_grad for t in (*arguments, *parameters)
        )
        changed = is_module and function.training != captured_training  # type: ignore[attr-defined]
        if wants_gradient or changed:
            return original(*arguments)
        if len(arguments) != len(static):
            raise RuntimeError(f"expected {len(static)} arguments, got {len(arguments)}")
        with torch.no_grad():
            for buffer, argument in zip(static, arguments, strict=True):
                if buffer.shape != argument.shape or buffer.dtype != argument.dtype:
                    raise RuntimeError(
                        f"expected an argument of shape {tuple(buffer.shape)} and {buffer.dtype}, "
                        f"as captured, got {tuple(argument.shape)} and {argument.dtype}"
                    )
                if buffer.data_ptr() != argument.data_ptr():
                    buffer.copy_(argument)
        captured.replay()
        return outputs

    if is_module:
        function.forward = replay  # type: ignore[attr-defined]
        return function
    return replay

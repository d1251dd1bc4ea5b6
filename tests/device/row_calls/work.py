"""Streams, events and graphs."""

import json
import time

import pytest
from onnxruntime_npu import _C, npu

from row_calls import calls


@calls("npu.Stream", "npu.SyncLaunchStream", "npu.Stream.wait_stream")
def _(c, name):
    address = c.block()
    kind = npu.Stream if name == "wait_stream" else getattr(npu, name)
    first, second = kind(), npu.Stream()
    _C.fill(0, address, 1, 4096, first.npu_stream)
    second.wait_stream(first)
    _C.fill(0, address, 2, 1, second.npu_stream)
    assert _C.copy_to_host(0, address, 2, second.npu_stream) == b"\2\1"


@calls(
    "npu.StreamContext",
    "npu.stream",
    "npu.set_stream",
    "npu.current_stream",
    "npu.default_stream",
)
def _(c, name):
    stream = npu.Stream()
    if name == "set_stream":
        npu.set_stream(stream)
        assert npu.current_stream() == stream
        return
    enter = npu.StreamContext if name == "StreamContext" else npu.stream
    with enter(stream):
        assert npu.current_stream() == stream != npu.default_stream()
    assert npu.current_stream(0) == npu.default_stream(0)


@calls(
    "npu.Event",
    "npu.Event.elapsed_time",
    "npu.Event.query",
    "npu.Event.wait",
    "npu.Event.recorded_time",
)
def _(c, name):
    start, end = npu.Event(enable_timing=True), npu.Event(enable_timing=True)
    assert start.query()
    start.record()
    _C.fill(0, c.block(1 << 20), 1, 1 << 20)
    end.record()
    end.wait(npu.Stream())
    assert start.elapsed_time(end) > 0
    assert end.query()
    assert abs(end.recorded_time() - time.monotonic_ns() // 1000) < 60_000_000


@calls(
    "npu.ExternalEvent",
    "npu.ExternalEvent.record",
    "npu.ExternalEvent.wait",
    "npu.ExternalEvent.reset",
)
def _(c, name):
    event = npu.ExternalEvent()
    event.record(npu.Stream())
    event.wait()
    with pytest.raises(RuntimeError, match="single record"):
        event.wait()
    event.record()
    event.reset()
    event.record()


def _captured(c):
    address, graph = c.block(), npu.NPUGraph()
    _C.fill(0, address, 0, 4)
    with npu.graph(graph):
        _C.fill(0, address, 5, 4)
    return address, graph


@calls("npu.NPUGraph", "npu.graph", "npu.NPUGraph.replay", "npu.NPUGraph.pool")
def _(c, name):
    address, graph = _captured(c)
    assert _C.copy_to_host(0, address, 4) == bytes(4)
    graph.replay()
    assert _C.copy_to_host(0, address, 4) == b"\5" * 4
    assert len(graph.pool()) == 2


@calls("npu.NPUGraph.capture_begin", "npu.NPUGraph.capture_end", "npu.is_current_stream_capturing")
def _(c, name):
    graph = npu.NPUGraph()
    assert not npu.is_current_stream_capturing()
    with npu.stream(npu.Stream()):
        graph.capture_begin(capture_error_mode="thread_local")
        assert npu.is_current_stream_capturing()
        graph.capture_end()
        assert not npu.is_current_stream_capturing()


@calls("npu.NPUGraph.reset")
def _(c, name):
    _, graph = _captured(c)
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()


@calls("npu.NPUGraph.debug_dump")
def _(c, name):
    _, graph = _captured(c)
    with pytest.warns(UserWarning, match="written"):
        graph.debug_dump(c.folder / "g.json")
    assert json.loads((c.folder / "g.json").read_text())["nodes"][0]["op"] == "memset"


@calls("npu.graph_pool_handle")
def _(c, name):
    assert npu.graph_pool_handle() != npu.graph_pool_handle()


@calls(
    "npu.graph_task_group_begin",
    "npu.graph_task_group_end",
    "npu.graph_task_update_begin",
    "npu.graph_task_update_end",
)
def _(c, name):
    address, graph, stream = c.block(), npu.NPUGraph(), npu.Stream()
    with npu.graph(graph, stream=stream):
        npu.graph_task_group_begin(stream)
        _C.fill(0, address, 1, 4)
        handle = npu.graph_task_group_end(stream)
    npu.graph_task_update_begin(stream, handle)
    _C.fill(0, address, 3, 4, stream.npu_stream)
    npu.graph_task_update_end(stream)
    graph.replay()
    assert _C.copy_to_host(0, address, 4) == b"\3" * 4


@calls("npu.make_graphed_callables")
def _(c, name):
    torch = c.torch
    x = torch.ones(4, device="npu")
    graphed = npu.make_graphed_callables(lambda t: t + t, (x,))
    y = torch.full((4,), 3.0, device="npu")
    assert graphed(y).cpu().tolist() == [6.0] * 4
    assert graphed(x).cpu().tolist() == [2.0] * 4

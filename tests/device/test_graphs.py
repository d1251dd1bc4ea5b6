"""Graphs through Python, on raw memory."""

import gc
import json

import pytest
from onnxruntime_npu import _C, npu


@pytest.fixture
def memory():
    address = npu.caching_allocator_alloc(64)
    _C.fill(0, address, 0, 64)
    npu.synchronize()
    yield address
    npu.synchronize()
    npu.caching_allocator_delete(address)


def read(address, count=8):
    return _C.copy_to_host(0, address, count)


def test_capture_runs_nothing_and_replay_runs_it_each_time(memory):
    g = npu.NPUGraph()
    stream = npu.Stream()
    with npu.graph(g, stream=stream):
        assert npu.is_current_stream_capturing()
        assert npu.current_stream() == stream
        _C.fill(0, memory, 7, 4)
        _C.copy_from_host(0, memory + 4, b"abcd")
    assert not npu.is_current_stream_capturing()
    assert read(memory) == bytes(8)
    g.replay()
    assert read(memory) == b"\7\7\7\7abcd"
    _C.fill(0, memory, 0, 8)
    npu.synchronize()
    with npu.stream(npu.Stream()):
        g.replay()
        npu.current_stream().synchronize()
    assert read(memory) == b"\7\7\7\7abcd"
    assert len(g) == 2


@pytest.mark.usefixtures("still_memory")
def test_a_captures_memory_is_in_its_pool():
    g = npu.NPUGraph()
    with npu.graph(g):
        inside = npu.caching_allocator_alloc(3 << 20)
        npu.caching_allocator_delete(inside)
    segments = npu.memory_snapshot(g.pool())
    assert segments[0]["blocks"][0]["address"] == inside
    npu.empty_cache()
    assert npu.memory_snapshot(g.pool())
    pool = g.pool()
    g.reset()
    npu.empty_cache()
    assert npu.memory_snapshot(pool) == []
    handle = npu.graph_pool_handle()
    assert handle[0] == 0 and npu.graph_pool_handle() > handle
    with npu.graph(g, pool=handle):
        pass
    assert g.pool() == handle
    del g
    gc.collect()


def test_illegal_calls_raise_and_spoil_the_capture(memory):
    for illegal in (
        npu.synchronize,
        lambda: npu.current_stream().synchronize(),
        lambda: npu.current_stream().query(),
        lambda: read(memory),
        lambda: npu.Stream().record_event().wait(),
    ):
        g = npu.NPUGraph()
        stream = npu.Stream()
        at_once = pytest.raises(RuntimeError, match="not permitted when stream is capturing")
        at_the_end = pytest.raises(RuntimeError, match="not permitted")
        with at_the_end, npu.graph(g, stream=stream), at_once:
            illegal()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            g.replay()
        assert npu.current_stream() == npu.default_stream()
    _C.fill(0, memory, 1, 1)
    assert read(memory, 1) == b"\1"


def test_misuse():
    g = npu.NPUGraph()
    with pytest.raises(RuntimeError, match="non-default stream"):
        g.capture_begin()
    with pytest.raises(RuntimeError, match=r"capture_end\(\) called before capture_begin"):
        g.capture_end()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        g.pool()
    with npu.stream(npu.Stream()):
        with pytest.raises(RuntimeError, match="Unknown capture error mode"):
            g.capture_begin(capture_error_mode="strict")
        g.capture_begin()
        with npu.stream(npu.Stream()), pytest.raises(RuntimeError, match="same stream"):
            g.capture_end()
        g.capture_end()
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            g.capture_begin()
    g.reset()
    with pytest.raises(RuntimeError, match="auto_dispatch_capture=True"):
        g.update([{}])


def test_streams_fork_and_join_inside_a_capture(memory):
    g, other = npu.NPUGraph(), npu.Stream()
    with npu.graph(g):
        _C.fill(0, memory, 1, 8)
        other.wait_stream(npu.current_stream())
        _C.fill(0, memory, 2, 4, other.npu_stream)
        npu.current_stream().wait_stream(other)
        _C.fill(0, memory, 3, 2)
    g.replay()
    assert read(memory) == b"\3\3\2\2\1\1\1\1"


def test_debug_dump(memory, tmp_path):
    g = npu.NPUGraph()
    path = tmp_path / "graph.json"
    with pytest.warns(UserWarning, match="nothing was captured"):
        g.debug_dump(path)
    assert not path.exists()
    with npu.graph(g):
        _C.fill(0, memory, 1, 8)
        _C.fill(0, memory, 2, 8)
    with pytest.warns(UserWarning, match="written to"):
        g.debug_dump(path)
    facts = json.loads(path.read_text())
    assert [(n["op"], n["after"]) for n in facts["nodes"]] == [("memset", []), ("memset", [0])]
    assert json.loads((tmp_path / "graph.aligned.json").read_text()) == facts


def test_a_dump_is_there_although_its_second_form_fails(memory, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr("onnxruntime_npu.npu._npugraph_utils.align_trace_json", fail)
    g = npu.NPUGraph()
    with npu.graph(g):
        _C.fill(0, memory, 1, 8)
    with pytest.warns(UserWarning, match="no aligned file of .*: no space"):
        g.debug_dump(tmp_path / "graph.json")
    assert [path.name for path in tmp_path.iterdir()] == ["graph.json"]


def test_task_groups_are_updated_between_replays(memory):
    g, stream = npu.NPUGraph(), npu.Stream()
    with pytest.raises(RuntimeError, match="capturing"):
        npu.graph_task_group_begin(stream)
    with npu.graph(g, stream=stream):
        _C.fill(0, memory, 1, 4)
        npu.graph_task_group_begin(stream)
        _C.fill(0, memory + 4, 2, 4)
        handle = npu.graph_task_group_end(stream)
        with pytest.raises(RuntimeError, match="not capturing"):
            npu.graph_task_update_begin(stream, handle)
    with pytest.raises(RuntimeError, match="before graph_task_update_begin"):
        npu.graph_task_update_end(stream)
    g.replay()
    assert read(memory) == b"\1\1\1\1\2\2\2\2"
    npu.graph_task_update_begin(stream, handle)
    _C.fill(0, memory + 4, 9, 4, stream.npu_stream)
    npu.graph_task_update_end(stream)
    g.replay()
    assert read(memory) == b"\1\1\1\1\x09\x09\x09\x09"

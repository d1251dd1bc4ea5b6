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


def test_capture_only_records_and_every_replay_runs(memory):
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
def test_capture_allocates_from_its_pool():
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


def test_illegal_calls_raise_and_invalidate_the_capture(memory):
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


def test_streams_fork_and_join_inside_capture(memory):
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


def test_debug_dump_is_written_even_if_trace_alignment_fails(memory, tmp_path, monkeypatch):
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


def test_destroying_a_graph_does_not_wait_for_other_streams(run_python):
    code = """
import faulthandler
faulthandler.dump_traceback_later(30, exit=True)
from onnxruntime_npu import _C, npu
for way in ("reset", "del"):
    g, stream = npu.NPUGraph(), npu.Stream()
    with npu.graph(g, stream=stream):
        inside = npu.caching_allocator_alloc(1 << 20)
        _C.fill(0, inside, 1, 1 << 20)
        npu.caching_allocator_delete(inside)
    side, gate = npu.Stream(), npu.ExternalEvent()
    with npu.stream(side):
        cached = npu.caching_allocator_alloc(1 << 20)
        npu.caching_allocator_delete(cached)
        gate.wait(side)
        g.replay()
    pool = g.pool()
    if way == "reset":
        g.reset()
    del g
    gate.record(npu.default_stream())  # no other thread unblocks the stream
    npu.synchronize()
print("ok")
"""
    assert run_python(code) == (0, "ok\n")


def test_graph_can_be_destroyed_during_its_replay(memory):
    g, stream, gate = npu.NPUGraph(), npu.Stream(), npu.ExternalEvent()
    with npu.graph(g, stream=stream):
        inside = npu.caching_allocator_alloc(8)
        _C.fill(0, inside, 7, 8)
        _C.copy_from_host(0, memory, b"abcdefgh")
        npu.caching_allocator_delete(inside)
    with npu.stream(stream):
        gate.wait(stream)
        g.replay()
    del g
    later = npu.caching_allocator_alloc(8)
    _C.fill(0, later, 3, 8)
    assert read(memory) == bytes(8)
    gate.record(npu.default_stream())
    stream.synchronize()
    assert read(memory) == b"abcdefgh"
    assert read(later) == b"\3" * 8
    npu.caching_allocator_delete(later)


def test_capture_spans_two_devices(run_python):
    code = """
from onnxruntime_npu import _C, npu
size = 1 << 18
source = npu.caching_allocator_alloc(size, 1)
_C.fill(1, source, 2, size)
npu.synchronize(1)
s0, s1, g = npu.Stream(device=0), npu.Stream(device=1), npu.NPUGraph()
with npu.graph(g, stream=s0):
    s1.wait_event(s0.record_event())
    with npu.device(1), npu.stream(s1):
        temporary = npu.caching_allocator_alloc(size, 1)
        _C.fill(1, temporary, 5, size)
        npu.caching_allocator_delete(temporary)
        done = s1.record_event()
    s0.wait_event(done)
with npu.device(1), npu.stream(s1):
    victims = [npu.caching_allocator_alloc(size, 1) for _ in range(4)]
    for victim in victims:
        _C.fill(1, victim, 7, size)
    s1.synchronize()
    assert temporary not in victims
    with npu.device(0):
        g.replay()
        npu.synchronize()
    for victim in victims:
        assert _C.copy_to_host(1, victim, size) == b"\\7" * size
    g.reset()
    for victim in (source, *victims):
        npu.caching_allocator_delete(victim)
print("ok")
"""
    assert run_python(code, ORT_NPU_DEVICE_COUNT="2") == (0, "ok\n")


def test_failed_update_changes_nothing(memory):
    g, stream = npu.NPUGraph(), npu.Stream()
    with npu.graph(g, stream=stream):
        npu.graph_task_group_begin(stream)
        _C.fill(0, memory, 1, 4)
        _C.fill(0, memory + 4, 2, 4)
        handle = npu.graph_task_group_end(stream)
    npu.graph_task_update_begin(stream, handle)
    _C.fill(0, memory, 9, 4, stream.npu_stream)
    with pytest.raises(RuntimeError, match="1 more launches"):
        npu.graph_task_update_end(stream)
    g.replay()
    assert read(memory) == b"\1\1\1\1\2\2\2\2"

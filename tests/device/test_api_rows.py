"""Calls every row of the device API's table for real, and checks what the call did."""

import gc
import json
import math
import os
import subprocess
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from onnxruntime_npu import _C, npu
from onnxruntime_npu.npu.api_table import ROWS, markdown

CALLS = {}


def calls(*names):
    """Registers a function as the call of these rows; it gets the row's name."""

    def register(function):
        for name in names:
            assert name not in CALLS, name
            CALLS[name] = function
        return function

    return register


@pytest.fixture
def torch_npu():
    """The package with a torch that knows npu."""
    pytest.importorskip("torch")
    import onnxruntime_npu
    from onnxruntime_npu import torch_device

    if not torch_device.is_built():
        pytest.skip("this build has no torch device")
    torch_device.register()
    return onnxruntime_npu


class Context:
    """What a call may need: a temporary folder, memory, and torch on demand."""

    def __init__(self, folder, request, run_python):
        self.folder = folder
        self.run_python = run_python
        self._request = request
        self._blocks = []

    @property
    def torch(self):
        self._request.getfixturevalue("torch_npu")
        import torch

        return torch

    @property
    def utils(self):
        return self._request.getfixturevalue("torch_npu").utils

    def block(self, size=4096):
        self._blocks.append(npu.caching_allocator_alloc(size))
        return self._blocks[-1]

    def close(self):
        npu.synchronize()
        for address in self._blocks:
            if _C.block_size(0, address):
                npu.caching_allocator_delete(address)


@pytest.fixture
def context(tmp_path, request, run_python):
    made = Context(tmp_path, request, run_python)
    yield made
    made.close()


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_row(row, context):
    if row.supported:
        CALLS[row.name](context, row.name.rpartition(".")[2])
        return
    owner = npu
    with pytest.raises(AttributeError):
        for part in row.name.split(".")[1:]:
            owner = getattr(owner, part)


def test_every_call_has_its_row():
    assert set(CALLS) == {row.name for row in ROWS if row.supported}


def test_the_document_is_generated_from_the_table():
    document = Path(__file__).resolve().parents[2] / "docs" / "device_api.md"
    assert document.read_text() == markdown(), (
        "run: python -m onnxruntime_npu.npu.api_table > docs/device_api.md"
    )


# --- devices


@calls("npu.init", "npu.is_initialized")
def _(c, name):
    npu.init()
    assert npu.is_initialized()


@calls("npu.is_available", "npu.device_count", "npu.current_device")
def _(c, name):
    assert npu.is_available() and npu.device_count() >= 1 and npu.current_device() == 0


@calls("npu.get_device_name", "npu.get_device_properties")
def _(c, name):
    assert npu.get_device_properties("npu:0").name == npu.get_device_name(0)
    assert npu.get_device_properties().total_memory > 0


@calls("npu.can_device_access_peer")
def _(c, name):
    assert npu.can_device_access_peer(0, 0) is False


@calls("npu.set_device", "npu.device", "npu.device_of")
def _(c, name):
    if name == "set_device":
        npu.set_device(0)
    elif name == "device":
        with npu.device("npu:0") as entered:
            assert entered.idx == 0 and npu.current_device() == 0
    else:
        with npu.device_of(object()) as entered:
            assert entered.idx == -1


@calls("npu.current_blas_handle", "npu.get_device_capability", "npu.aclnn.version")
def _(c, name):
    with pytest.warns(UserWarning):
        assert getattr(npu.aclnn if name == "version" else npu, name)() is None


@calls("npu.set_sync_debug_mode", "npu.get_sync_debug_mode")
def _(c, name):
    with pytest.warns(UserWarning, match="prototype"):
        npu.set_sync_debug_mode("error")
    assert npu.get_sync_debug_mode() == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        npu.set_sync_debug_mode("default")
    assert npu.get_sync_debug_mode() == 0


@calls("npu.utilization")
def _(c, name):
    assert 0 <= npu.utilization() <= 100


@calls("npu.ipc_collect", "npu.synchronize")
def _(c, name):
    assert getattr(npu, name)() is None


@calls("npu.stress_detect")
def _(c, name):
    assert npu.stress_detect("aic") == 0


@calls("npu.stop_device", "npu.restart_device")
def _(c, name):
    address = c.block()
    assert npu.stop_device(0) == 0
    with pytest.raises(RuntimeError, match="FORCE STOP"):
        _C.fill(0, address, 1, 8)
    npu.restart_device(0)
    _C.fill(0, address, 1, 8)
    assert _C.copy_to_host(0, address, 8) == b"\1" * 8


@calls("npu.check_uce_in_memory")
def _(c, name):
    assert npu.check_uce_in_memory(0) == 0


# --- memory


@calls("npu.caching_allocator_alloc", "npu.caching_allocator_delete")
def _(c, name):
    before = npu.memory_allocated()
    address = npu.caching_allocator_alloc(1024, 0, npu.current_stream())
    assert npu.memory_allocated() == before + 1024
    npu.caching_allocator_delete(address)
    assert npu.memory_allocated() == before


@calls("npu.set_per_process_memory_fraction")
def _(c, name):
    npu.set_per_process_memory_fraction(0.5)
    assert npu.get_per_process_memory_fraction() == 0.5


@calls("npu.empty_cache")
def _(c, name):
    npu.caching_allocator_delete(c.block(30 << 20))
    reserved = npu.memory_reserved()
    npu.empty_cache()
    assert npu.memory_reserved() <= reserved - (30 << 20)


@calls("npu.empty_virt_addr_cache")
def _(c, name):
    with pytest.raises(RuntimeError, match="please enable expandable_segments"):
        npu.empty_virt_addr_cache()


@calls("npu.memory_stats", "npu.memory_stats_as_nested_dict")
def _(c, name):
    address = c.block()
    flat, nested = npu.memory_stats(), npu.memory_stats_as_nested_dict()
    assert address and flat["active.all.current"] == nested["active"]["all"]["current"] > 0


@calls("npu.reset_accumulated_memory_stats")
def _(c, name):
    npu.caching_allocator_delete(c.block())
    npu.reset_accumulated_memory_stats()
    assert npu.memory_stats()["allocated_bytes.all.allocated"] == 0


@calls(
    "npu.reset_peak_memory_stats", "npu.reset_max_memory_allocated", "npu.reset_max_memory_cached"
)
def _(c, name):
    npu.caching_allocator_delete(c.block(1 << 20))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        getattr(npu, name)()
    assert npu.max_memory_allocated() == npu.memory_allocated()
    assert npu.max_memory_reserved() == npu.memory_reserved()


@calls("npu.memory_allocated", "npu.max_memory_allocated")
def _(c, name):
    c.block(1 << 20)
    assert getattr(npu, name)() >= 1 << 20


@calls("npu.memory_reserved", "npu.max_memory_reserved", "npu.memory_cached")
def _(c, name):
    c.block(1 << 20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert getattr(npu, name)() >= npu.memory_allocated()


@calls("npu.max_memory_cached")
def _(c, name):
    with pytest.warns(DeprecationWarning):
        assert npu.max_memory_cached() == npu.max_memory_reserved()


@calls("npu.memory_snapshot")
def _(c, name):
    address = c.block()
    assert any(b["address"] == address for s in npu.memory_snapshot() for b in s["blocks"])


@calls("npu.memory_summary")
def _(c, name):
    assert "NPU reserved memory" in npu.memory_summary(0, abbreviated=True)


@calls("npu.mem_get_info")
def _(c, name):
    free, total = npu.mem_get_info()
    assert total - free == npu.memory_reserved()


@calls("npu.get_allocator_backend")
def _(c, name):
    assert npu.get_allocator_backend() == "native"


@calls("npu.NPUPluggableAllocator", "npu.change_current_allocator")
def _(c, name):
    source = """
#include <stdlib.h>
void* take(size_t n, int d, void* s) { return malloc(n); }
void give(void* p, size_t n, int d, void* s) { free(p); }
"""
    (c.folder / "a.c").write_text(source)
    library = str(c.folder / "a.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(c.folder / "a.c")], check=True)
    code = f"""
from onnxruntime_npu import npu
npu.change_current_allocator(npu.NPUPluggableAllocator({library!r}, "take", "give"))
npu.caching_allocator_delete(npu.caching_allocator_alloc(64))
print(npu.get_allocator_backend(), npu.memory_reserved())
"""
    assert c.run_python(code) == (0, "pluggable 0\n")


# --- streams and events


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


# --- graphs


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


# --- generators


@calls(
    "npu.get_rng_state",
    "npu.set_rng_state",
    "npu.get_rng_state_all",
    "npu.set_rng_state_all",
    "npu.manual_seed",
    "npu.manual_seed_all",
    "npu.initial_seed",
)
def _(c, name):
    npu.manual_seed_all(3)
    npu.manual_seed(42)
    state, states = npu.get_rng_state(), npu.get_rng_state_all()
    npu.manual_seed(1)
    npu.set_rng_state(state)
    assert npu.initial_seed() == 42
    npu.manual_seed(1)
    npu.set_rng_state_all(states)
    assert npu.initial_seed() == 42


@calls("npu.seed", "npu.seed_all")
def _(c, name):
    seeds = set()
    for _ in range(3):
        getattr(npu, name)()
        seeds.add(npu.initial_seed())
    assert len(seeds) == 3


# --- mixed precision and overflow


@calls("npu.get_amp_supported_dtype")
def _(c, name):
    torch = c.torch
    assert npu.get_amp_supported_dtype() == [torch.float16, torch.bfloat16, torch.float32]


@calls("npu.is_autocast_enabled", "npu.set_autocast_enabled")
def _(c, name):
    torch = c.torch
    npu.set_autocast_enabled(True)
    assert npu.is_autocast_enabled() and torch.is_autocast_enabled("npu")
    npu.set_autocast_enabled(False)
    assert not npu.is_autocast_enabled()
    with pytest.raises(TypeError, match="bool"):
        npu.set_autocast_enabled(1)


@calls("npu.get_autocast_dtype", "npu.set_autocast_dtype")
def _(c, name):
    torch = c.torch
    before = npu.get_autocast_dtype()
    npu.set_autocast_dtype(torch.bfloat16)
    assert npu.get_autocast_dtype() == torch.bfloat16
    npu.set_autocast_dtype(before)


@calls("npu.utils.is_support_inf_nan")
def _(c, name):
    assert npu.utils.is_support_inf_nan() is True


@calls("npu.utils.npu_check_overflow")
def _(c, name):
    torch = c.torch
    assert npu.utils.npu_check_overflow(math.inf) and not npu.utils.npu_check_overflow(1.0)
    assert npu.utils.npu_check_overflow(torch.tensor([1.0, math.nan], device="npu"))
    assert not npu.utils.npu_check_overflow(torch.ones(3, dtype=torch.float16, device="npu"))
    with pytest.raises(RuntimeError, match="Unsupported type"):
        npu.utils.npu_check_overflow("1")


@calls("npu.get_npu_overflow_flag")
def _(c, name):
    with pytest.raises(RuntimeError, match="INF_NAN"):
        npu.get_npu_overflow_flag()


@calls("npu.clear_npu_overflow_flag")
def _(c, name):
    with pytest.warns(UserWarning, match="INF_NAN"):
        npu.clear_npu_overflow_flag()


# --- options


@calls("npu.matmul.allow_hf32", "npu.conv.allow_hf32", "npu.aclnn.allow_hf32")
def _(c, name):
    for owner in (npu.matmul, npu.conv, npu.aclnn):
        before = owner.allow_hf32
        owner.allow_hf32 = not before
        assert owner.allow_hf32 is not before
        owner.allow_hf32 = before
        with pytest.raises(TypeError, match="bool"):
            owner.allow_hf32 = 1
        assert owner.other is None
    npu.matmul.cube_math_type = 3
    assert npu.matmul.cube_math_type == 3
    npu.matmul.cube_math_type = 0
    with pytest.raises(TypeError, match="cube_math_type"):
        npu.matmul.cube_math_type = 9


@calls("npu.set_option")
def _(c, name):
    option = {"ACL_AICORE_NUM": 8}
    npu.set_option(option)
    assert option == {"ACL_AICORE_NUM": "8"}
    with pytest.raises(TypeError, match="must be a dict"):
        npu.set_option([("a", 1)])
    with pytest.raises(
        ValueError, match=r"jitCompile should be in \['enable', 'disable'\] but got"
    ):
        npu.set_option({"jitCompile": "maybe"})
    with pytest.raises(RuntimeError, match="invalid npu option name: colour"):
        npu.set_option({"colour": "blue"})


@calls("npu.config.allow_internal_format")
def _(c, name):
    npu.config.allow_internal_format = False
    npu.config.something_else = 1
    with pytest.raises(AttributeError):
        npu.config.allow_internal_format  # noqa: B018


@calls("npu.set_compile_mode", "npu.is_jit_compile_false")
def _(c, name):
    assert npu.is_jit_compile_false()
    npu.set_compile_mode(jit_compile=True)
    assert not npu.is_jit_compile_false()
    npu.set_compile_mode(jit_compile=False)


@calls("npu.set_mm_bmm_format_nd", "npu.get_mm_bmm_format_nd")
def _(c, name):
    assert npu.get_mm_bmm_format_nd()
    npu.set_mm_bmm_format_nd(False)
    assert not npu.get_mm_bmm_format_nd()
    npu.set_option({"MM_BMM_ND_ENABLE": "enable"})
    assert npu.get_mm_bmm_format_nd()


@calls("npu.set_aoe")
def _(c, name):
    npu.set_aoe(str(c.folder / "aoe"))
    assert (c.folder / "aoe").is_dir()
    with pytest.raises(TypeError, match="dump_path"):
        npu.set_aoe(3)
    npu.set_option({"autotune": "disable"})


@calls("npu.init_dump", "npu.set_dump", "npu.finalize_dump")
def _(c, name):
    torch = c.torch
    config = c.folder / "dump.json"
    with pytest.raises(AssertionError, match="path does not exist"):
        npu.set_dump(str(config))
    config.write_text('{"dump": []}')
    with pytest.raises(ValueError, match="expected"):
        npu.set_dump(str(config))
    facts = {"dump_path": str(c.folder / "out"), "dump_mode": "all", "dump_list": ["NPURmsNorm"]}
    config.write_text(json.dumps({"dump": facts}))
    x, gamma = torch.randn(2, 8), torch.ones(8)
    npu.init_dump()
    npu.set_dump(str(config))
    y = torch.ops.npu.npu_rms_norm(x.npu(), gamma.npu())[0].cpu()
    npu.finalize_dump()
    torch.ops.npu.npu_rms_norm(x.npu(), gamma.npu())
    npu.synchronize()
    files = {f.name.split(".", 2)[2]: np.load(f) for f in (c.folder / "out").iterdir()}
    assert set(files) == {"input.0.npy", "input.1.npy", "output.0.npy", "output.1.npy"}
    np.testing.assert_array_equal(files["input.0.npy"], x.numpy())
    np.testing.assert_array_equal(files["output.0.npy"], y.numpy())


# --- marks


@calls(
    "npu.mstx", "npu.mstx.mark", "npu.mstx.range_start", "npu.mstx.range_end", "npu.mstx.mstx_range"
)
def _(c, name):
    mstx, stream = npu.mstx, npu.Stream()
    address = c.block()

    @mstx.mstx_range("decorated")
    def work():
        _C.fill(0, address, 1, 64, stream.npu_stream)
        return 7

    path = c.folder / "trace.json"
    with npu.profile(path):
        mstx.mark("here", stream)
        number = mstx.range_start("range", domain="mine")
        assert mstx.range_push("outer") == 0 and mstx.range_push("inner") == 1
        assert work() == 7
        assert mstx.range_pop() == 1 and mstx.range_pop() == 0 and mstx.range_pop() == -1
        with mstx.annotate("annotated"):
            pass
        mstx.range_end(number, "mine")
        with pytest.raises(RuntimeError, match="a profile runs already"), npu.profile(path):
            pass
    events = json.loads(path.read_text())["traceEvents"]
    launches = [e for e in events if e["ph"] == "X" and e["name"] == "memset"]
    assert [e["tid"] for e in launches] == [f"stream {stream.stream_id}"]
    assert all(e["dur"] >= 0 and e["ts"] > 0 for e in launches)
    assert sum(e["name"] == "here" for e in events) == 2  # on the host and on the stream
    for ranged in ("range", "outer", "inner", "decorated", "annotated"):
        assert [e["ph"] for e in events if e["name"] == ranged] == ["b", "e"]
    for wrong in (lambda: mstx.mark(""), lambda: mstx.mark(3), lambda: mstx.range_end("1")):
        with pytest.warns(UserWarning, match="mstx"):
            wrong()
    with pytest.warns(UserWarning, match=r"torch\.npu\.Stream"):
        assert mstx.range_start("x", stream=5) == 0


@calls("npu._sanitizer.enable_npu_sanitizer")
def _(c, name):
    _ = c.torch
    code = """
import torch, onnxruntime_npu
from onnxruntime_npu import npu, torch_device
torch_device.register()
npu._sanitizer.enable_npu_sanitizer()
npu._sanitizer.enable_npu_sanitizer()
side = npu.Stream()
x = torch.ones(8, device="npu")
try:
    with npu.stream(side):
        x.add_(1)
except Exception as error:
    print("race:", type(error).__name__)
y = torch.ones(8, device="npu")
side.wait_stream(npu.current_stream())
with npu.stream(side):
    y.add_(1)
npu.synchronize()
print("ordered:", y.cpu().tolist()[0])
"""
    status, output = c.run_python(code, ORT_NPU_LOG="error")
    assert status == 0, output
    assert "race: CUDASanitizerErrors" in output and "ordered: 2.0" in output


# --- legacy types

_STORAGES = ["Bool", "Byte", "Short", "Long", "Int", "Half", "Char", "Double", "Float"]


@calls(*(f"npu.{kind}Storage" for kind in _STORAGES))
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def _(c, name):
    _ = c.torch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        kind = getattr(npu, name)
        storage = kind([1, 0, 1])
        assert storage.device.type == "npu" and storage.dtype == kind.dtype
        assert storage.tolist() == [1, 0, 1] and len(kind(5)) == 5
        with pytest.raises(RuntimeError, match="Not available for NPU storage"):
            kind.from_buffer(b"")


@calls(*(f"npu.{kind}Tensor" for kind in _STORAGES))
def _(c, name):
    torch = c.torch
    kind = getattr(npu, name)
    tensor = kind([1, 0, 1])
    assert tensor.device.type == "npu" and tensor.dtype == kind.dtype
    assert tensor.cpu().tolist() == [1, 0, 1]
    assert kind(2, 3).shape == (2, 3)
    assert isinstance(tensor, kind) and not isinstance(torch.ones(1), kind)


# --- utils


@calls("utils.save_async")
def _(c, name):
    torch, path = c.torch, c.folder / "saved.pt"
    x = torch.arange(4.0, device="npu")
    c.utils.save_async({"x": x, "n": 3}, path)
    x.fill_(9)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            loaded = torch.load(path)
            break
        except (OSError, EOFError, RuntimeError):
            time.sleep(0.02)
    assert loaded["x"].tolist() == [0, 1, 2, 3] and loaded["n"] == 3
    with pytest.raises(RuntimeError, match="zipfile"):
        c.utils.save_async(x, path, _use_new_zipfile_serialization=False)


@calls(
    "utils.npu_combine_tensors", "utils.get_part_combined_tensor", "utils.is_combined_tensor_valid"
)
def _(c, name):
    torch, utils = c.torch, c.utils
    a, b = torch.ones(2, 2, device="npu"), torch.full((3,), 5.0, device="npu")
    assert not utils.is_combined_tensor_valid(None, [a])
    combined = utils.npu_combine_tensors([a, b])
    assert combined.cpu().tolist() == [1, 1, 1, 1, 5, 5, 5]
    assert utils.is_combined_tensor_valid(combined, [a, b])
    combined.fill_(2)
    assert a.cpu().tolist() == [[2, 2], [2, 2]] and b.cpu().tolist() == [2, 2, 2]
    part = utils.get_part_combined_tensor(combined, 4, 3)
    assert part.data_ptr() == b.data_ptr()
    assert utils.get_part_combined_tensor(combined, 0, 0) is None
    with pytest.raises(RuntimeError, match="within 7 elements"):
        utils.get_part_combined_tensor(combined, 5, 3)
    zeros = torch.ones(2, device="npu")
    assert utils.npu_combine_tensors([zeros], require_copy_value=False).cpu().tolist() == [0, 0]
    assert zeros.cpu().tolist() == [0, 0]
    assert utils.npu_combine_tensors([]) is None
    for wrong in ([None], [torch.ones(1)], [a, torch.ones(2, dtype=torch.int32, device="npu")]):
        with pytest.raises(RuntimeError, match="npu_combine_tensors"):
            utils.npu_combine_tensors(wrong)
    del a, b, combined, part
    gc.collect()


@calls("utils.FlopsCounter")
def _(c, name):
    torch = c.torch
    counter = c.utils.FlopsCounter()
    assert counter is c.utils.FlopsCounter()
    assert counter.get_flops() == [0, 0]
    x, y = torch.ones(4, 8), torch.ones(8, 2)
    counter.start()
    x @ y
    counter.pause()
    x @ y
    counter.resume()
    assert counter.get_flops() == [128, 256]
    counter.stop()
    assert counter.get_flops() == [0, 0]


@calls("utils.set_thread_affinity", "utils.reset_thread_affinity")
def _(c, name):
    from onnxruntime_npu import utils

    cores = os.sched_getaffinity(0)
    first = min(cores)
    try:
        utils.set_thread_affinity([first, first])
        assert os.sched_getaffinity(0) == {first}
        utils.set_thread_affinity([[first, first], [first, first]])
        for bad in ([], [1], "01", [[1]], [1, 2, 3]):
            with pytest.raises(ValueError, match="Invalid core range"):
                utils.set_thread_affinity(bad)
        with pytest.raises(ValueError, match="values"):
            utils.set_thread_affinity([2, 1])
        utils.set_thread_affinity()
        assert os.sched_getaffinity(0) == cores
        utils.reset_thread_affinity()
    finally:
        os.sched_setaffinity(0, cores)

"""The caching allocator through Python, on raw memory."""

import ctypes
import gc
import itertools
import pickle
import subprocess

import pytest
from onnxruntime_npu import _C, npu
from onnxruntime_npu.errors import ArgumentError

FAMILIES = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
]
PARTS = ["current", "peak", "allocated", "freed"]
SCALARS = [
    "max_split_size",
    "num_alloc_retries",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
    "num_ooms",
    "num_sync_all_streams",
]


@pytest.fixture
def block():
    taken = []

    def take(size, **kwargs):
        taken.append(npu.caching_allocator_alloc(size, **kwargs))
        return taken[-1]

    yield take
    for address in taken:
        if _C.block_size(0, address):
            npu.caching_allocator_delete(address)


def test_memory_stats_has_exactly_the_keys_of_torch_npu():
    pools = ["all", "small_pool", "large_pool"]
    expected = {".".join(key) for key in itertools.product(FAMILIES, pools, PARTS)}
    expected |= {f"oversize_{kind}.{p}" for kind in ("allocations", "segments") for p in PARTS}
    stats = npu.memory_stats()
    assert set(stats) == expected | set(SCALARS)
    assert len(stats) == 123
    assert list(stats) == sorted(stats)
    assert stats["max_split_size"] == -1


@pytest.mark.usefixtures("still_memory")
def test_counters_follow_allocation_and_free(block):
    before = npu.memory_allocated()
    npu.reset_peak_memory_stats()
    address = block(3000)
    assert npu.memory_allocated() == before + 3072
    assert npu.max_memory_allocated() == before + 3072
    npu.caching_allocator_delete(address)
    assert npu.memory_allocated() == before
    assert npu.max_memory_allocated() == before + 3072
    npu.reset_peak_memory_stats()
    assert npu.max_memory_allocated() == before
    assert npu.memory_stats()["allocation.all.freed"] > 0
    npu.reset_accumulated_memory_stats()
    assert npu.memory_stats()["allocation.all.freed"] == 0


def test_copies_run_in_stream_order(block):
    address = block(64)
    _C.copy_from_host(0, address, bytes(range(64)))
    _C.fill(0, address + 8, 7, 8)
    assert _C.copy_to_host(0, address, 64) == bytes(range(8)) + b"\7" * 8 + bytes(range(16, 64))


def test_raw_copies_are_bounded_by_one_block(block):
    address = block(512)
    for bad in (address + 1, address - 1, 64):
        with pytest.raises(RuntimeError, match="inside one live block"):
            _C.fill(0, bad, 0, 512)
    npu.caching_allocator_delete(address)
    with pytest.raises(RuntimeError, match="inside one live block"):
        _C.copy_to_host(0, address, 8)


def test_foreign_pointer_is_refused(block):
    address = block(4096)
    local = ctypes.create_string_buffer(64)
    for bad in (ctypes.addressof(local), address + 64, 1, 2**63):
        with pytest.raises(RuntimeError, match="invalid device pointer"):
            npu.caching_allocator_delete(bad)
    npu.caching_allocator_delete(address)
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        npu.caching_allocator_delete(address)
    npu.caching_allocator_delete(0)


def test_bad_arguments_of_caching_allocator_alloc():
    assert npu.caching_allocator_alloc(0) == 0
    with pytest.raises(TypeError, match="stream argument"):
        npu.caching_allocator_alloc(8, stream="0")
    with pytest.raises(RuntimeError, match="live stream"):
        npu.caching_allocator_alloc(8, stream=12345)
    with pytest.raises(ValueError, match="size"):
        npu.caching_allocator_alloc(-1)
    with pytest.raises(AssertionError, match="Invalid device id"):
        npu.caching_allocator_alloc(8, device=99)
    with pytest.raises(ValueError, match="Expected a npu device"):
        npu.caching_allocator_alloc(8, device="cuda:0")


def test_out_of_memory_reports_usage_and_device_stays_usable(block):
    before = npu.memory_stats()["num_ooms"]
    with pytest.raises(
        RuntimeError, match=r"NPU out of memory. Tried to allocate 1.00 PiB"
    ) as info:
        npu.caching_allocator_alloc(2**50)
    assert isinstance(info.value, MemoryError) or type(info.value).__name__ == "OutOfMemoryError"
    assert npu.memory_stats()["num_ooms"] == before + 1
    block(1024)


def test_out_of_memory_is_torch_error_when_torch_is_imported(run_python):
    pytest.importorskip("torch")
    code = """
import torch
from onnxruntime_npu import npu
try:
    npu.caching_allocator_alloc(2**50)
except torch.OutOfMemoryError as error:
    print("caught", error)
"""
    status, output = run_python(code)
    assert status == 0, output
    assert "caught NPU out of memory" in output


@pytest.mark.parametrize("with_torch", ["", "import torch"])
def test_out_of_memory_has_the_name_that_scripts_catch(run_python, with_torch):
    code = """
from onnxruntime_npu import npu
assert "OutOfMemoryError" in dir(npu)
try:
    npu.caching_allocator_alloc(2**50)
except npu.OutOfMemoryError as error:
    print("caught", error)
"""
    status, output = run_python(f"{with_torch}{code}")
    assert status == 0, output
    assert "caught NPU out of memory" in output


@pytest.mark.usefixtures("still_memory")
def test_memory_fraction(block):
    with pytest.raises(TypeError, match="fraction"):
        npu.set_per_process_memory_fraction(1)
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="0~1"):
            npu.set_per_process_memory_fraction(bad)
    npu.empty_cache()
    total = npu.mem_get_info()[1]
    npu.set_per_process_memory_fraction((npu.memory_reserved() + (64 << 20)) / total)
    assert npu.get_per_process_memory_fraction() < 1
    rejected = npu.memory_stats()["num_oom_rejections"]
    with pytest.raises(RuntimeError, match="allowed"):
        npu.caching_allocator_alloc(100 << 20)
    assert npu.memory_stats()["num_oom_rejections"] == rejected + 1
    npu.set_per_process_memory_fraction(1.0)
    block(100 << 20)


@pytest.mark.usefixtures("still_memory")
def test_empty_cache_and_mem_get_info(block):
    npu.caching_allocator_delete(block(40 << 20))
    reserved = npu.memory_reserved()
    free, total = npu.mem_get_info()
    assert total - free == reserved
    npu.empty_cache()
    assert npu.memory_reserved() <= reserved - (40 << 20)


@pytest.mark.usefixtures("still_memory")
def test_empty_virt_addr_cache_needs_expandable_segments(block):
    with pytest.raises(RuntimeError, match="please enable expandable_segments"):
        npu.empty_virt_addr_cache()
    npu._set_allocator_settings("expandable_segments:True")
    try:
        npu.caching_allocator_delete(block(50 << 20))
        assert any(s["is_expandable"] for s in npu.memory_snapshot())
        npu.empty_virt_addr_cache()
        assert not any(s["is_expandable"] for s in npu.memory_snapshot())
    finally:
        npu._set_allocator_settings("expandable_segments:False")
    with pytest.raises(ValueError, match="expandable_segments"):
        npu._set_allocator_settings("max_split_size_mb:64")


def test_snapshot_history_and_dump(block, tmp_path):
    npu._record_memory_history(max_entries=100)
    try:
        address = block(5000)
        snapshot = npu._snapshot()
    finally:
        npu._record_memory_history(None)
    blocks = [b for s in snapshot["segments"] for b in s["blocks"] if b["address"] == address]
    assert [(b["requested_size"], b["state"]) for b in blocks] == [(5000, "active_allocated")]
    event = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"][-1]
    assert (event["addr"], event["size"]) == (address, 5000)
    assert any(f["name"] == "test_snapshot_history_and_dump" for f in event["frames"])
    assert event["stream"] == npu.current_stream().npu_stream
    npu._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    with open(tmp_path / "snapshot.pickle", "rb") as file:
        assert set(pickle.load(file)) == {"segments", "device_traces"}
    for segment in npu.memory_snapshot():
        assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
    with pytest.raises(ValueError, match="enabled"):
        npu._record_memory_history("some")


def test_address_lookup_is_not_recorded_in_history(block):
    address = block(4000)
    _C.record_memory_history(0, 100, False)
    try:
        _C.copy_to_host(0, address + 100, 16)
        _C.fill(0, address, 1, 4000)
        assert _C.device_of_address(address + 3999) == 0
        assert _C.classify_address(0, address + 1) == 3
        assert _C.classify_address(0, 4096) == 1
        assert _C.memory_history(0) == []
    finally:
        _C.record_memory_history(0, 0, False)


UNCACHED = """
from onnxruntime_npu.errors import OutOfMemoryError
from onnxruntime_npu import _C, npu
free, total = npu.mem_get_info()
p = npu.caching_allocator_alloc(4 << 20)
assert npu.memory_allocated() == npu.memory_reserved() == 4 << 20
assert npu.mem_get_info() == (free - (4 << 20), total)
assert _C.device_of_address(p + 12345) == 0
npu.set_per_process_memory_fraction(8 * 2**20 / total)
try:
    npu.caching_allocator_alloc(8 << 20)
except OutOfMemoryError:
    assert npu.memory_stats()["num_ooms"] == 1
npu.caching_allocator_delete(p)
assert npu.memory_reserved() == 0 and npu.max_memory_reserved() == 4 << 20
npu.reset_peak_memory_stats()
npu.reset_accumulated_memory_stats()
stats = npu.memory_stats()
print(stats["reserved_bytes.all.peak"], stats["allocation.all.allocated"], stats["num_ooms"])
"""


def test_statistics_and_limits_without_caching(run_python):
    assert run_python(UNCACHED, PYTORCH_NO_NPU_MEMORY_CACHING="1") == (0, "0 0 0\n")


def test_memory_summary(block):
    block(5 << 20)
    text = npu.memory_summary()
    lines = text.splitlines()
    assert all(len(line) == 77 for line in lines)
    labels = [line.split("|")[1].strip() for line in lines if line.count("|") == 6]
    assert labels[:4] == ["Metric", "Allocated memory", "from large pool", "from small pool"]
    assert "PyTorch NPU memory summary, device ID 0" in text
    assert "NPU OOMs:" in text and "npuMalloc retries:" in text
    assert "Oversize NPU segments" in text
    assert "from large pool" not in npu.memory_summary(abbreviated=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")],
)
@pytest.mark.usefixtures("still_memory")
def test_deprecated_names_warn(old, new):
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(npu, old)() == getattr(npu, new)()


@pytest.mark.parametrize("old", ["reset_max_memory_allocated", "reset_max_memory_cached"])
@pytest.mark.usefixtures("still_memory")
def test_deprecated_resets_warn_and_reset_every_peak(old, block):
    npu.caching_allocator_delete(block(30 << 20))
    with pytest.warns(DeprecationWarning, match="reset_peak_memory_stats"):
        getattr(npu, old)()
    assert npu.max_memory_allocated() == npu.memory_allocated()


@pytest.mark.usefixtures("still_memory")
def test_memory_pool_blocks_are_separate(block):
    pool = npu.MemPool()
    assert pool.use_count() == 1
    with npu.use_mem_pool(pool):
        assert pool.use_count() == 2
        address = block(3 << 20)
    inside = [b["address"] for s in pool.snapshot() for b in s["blocks"]]
    assert address in inside
    npu.caching_allocator_delete(address)
    assert block(3 << 20) not in inside
    npu.empty_cache()
    assert pool.snapshot()
    pool_id = pool.id
    del pool
    gc.collect()
    npu.empty_cache()
    assert npu.memory_snapshot(pool_id) == []


def test_malformed_configuration_raises_helpful_value_error(run_python):
    code = "import onnxruntime_npu.npu as npu; npu.caching_allocator_alloc(8)"
    status, output = run_python(code, PYTORCH_NPU_ALLOC_CONF="max_split_size_mb:banana")
    assert status == 1
    assert "PYTORCH_NPU_ALLOC_CONF: expected max_split_size_mb:an integer from 21" in output
    assert issubclass(ArgumentError, ValueError)
    status, output = run_python(code, PYTORCH_NPU_ALLOC_CONF="colour:blue")
    assert status == 1 and "unknown key 'colour'; expected one of" in output
    both = {"PYTORCH_NPU_ALLOC_CONF": "", "PYTORCH_ALLOC_CONF": "page_size:1g"}
    status, output = run_python(code, **both)
    assert status == 1 and "both set" in output


def test_configuration_reaches_the_allocator(run_python):
    code = """
from onnxruntime_npu import npu
print(npu.memory_stats()["max_split_size"], npu.get_per_process_memory_fraction())
"""
    conf = "max_split_size_mb:64,per_process_memory_fraction:0.5"
    assert run_python(code, PYTORCH_NPU_ALLOC_CONF=conf) == (0, f"{64 << 20} 0.5\n")


SOURCE = """
#include <stdlib.h>
int taken = 0, given = 0;
void* my_alloc(size_t size, int device, void* stream) { taken += size; return malloc(size); }
void my_free(void* p, size_t size, int device, void* stream) { given += size; free(p); }
"""


def test_pluggable_allocator(tmp_path, run_python):
    (tmp_path / "alloc.c").write_text(SOURCE)
    library = tmp_path / "alloc.so"
    compile_it = ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "alloc.c")]
    subprocess.run(compile_it, check=True)
    code = f"""
import ctypes
from onnxruntime_npu import npu
assert npu.get_allocator_backend() == "native"
plug = npu.NPUPluggableAllocator({str(library)!r}, "my_alloc", "my_free")
npu.change_current_allocator(plug)
assert npu.get_allocator_backend() == "pluggable"
p = npu.caching_allocator_alloc(1000)
npu.caching_allocator_delete(p)
npu.synchronize()
library = ctypes.CDLL({str(library)!r})
print(ctypes.c_int.in_dll(library, "taken").value, ctypes.c_int.in_dll(library, "given").value)
try:
    npu.change_current_allocator(plug)
except RuntimeError as error:
    print(error)
"""
    status, output = run_python(code)
    assert status == 0, output
    assert output.startswith("1000 1000\n")
    assert "was used already" in output
    with pytest.raises(OSError, match="nowhere"):
        npu.NPUPluggableAllocator("/nowhere.so", "a", "b")
    with pytest.raises(AttributeError, match="no_such"):
        npu.NPUPluggableAllocator(str(library), "no_such", "my_free")
    with pytest.raises(TypeError, match="NPUPluggableAllocator"):
        npu.change_current_allocator(print)


LATE = """
import os
import onnxruntime_npu
from onnxruntime_npu import npu
assert npu.device_count() > 0
os.environ["PYTORCH_NPU_ALLOC_CONF"] = "{conf}"
npu.caching_allocator_alloc(5 << 20)
print(npu.memory_reserved() >> 20)
"""


def test_allocator_environment_is_read_until_first_allocation(run_python):
    assert run_python(LATE.format(conf="large_segment_size_mb:64")) == (0, "64\n")
    code, output = run_python(LATE.format(conf="no_such_key:1"))
    assert code == 1 and "unknown key 'no_such_key'" in output


def test_pluggable_allocator_hooks(tmp_path, run_python):
    calls = {
        "init": "int n",
        "reset": "",
        "memory_fraction": "double f, int d",
        "record_stream": "void* p, void* s",
        "erase_stream": "void* p, void* s",
        "reset_peak_status": "int d",
        "begin_allocate_to_pool": "int d, unsigned long a, unsigned long b",
        "end_allocate_to_pool": "int d, unsigned long a, unsigned long b",
        "release_pool": "int d, unsigned long a, unsigned long b",
    }
    functions = "".join(
        f'void on_{n}({a}) {{ fprintf(stderr, "<{n}>"); }}' + chr(10) for n, a in calls.items()
    )
    (tmp_path / "alloc.c").write_text("#include <stdio.h>" + chr(10) + SOURCE + functions)
    library = tmp_path / "alloc.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "alloc.c")], check=True
    )
    code = f"""
import ctypes
from onnxruntime_npu import _C, npu
plug = npu.NPUPluggableAllocator({str(library)!r}, "my_alloc", "my_free")
library = ctypes.CDLL({str(library)!r})
for name in {list(calls)!r}:
    setter = getattr(plug.allocator(), f"set_{{name}}_fn", None) or getattr(plug, f"set_{{name}}")
    setter(ctypes.cast(getattr(library, f"on_{{name}}"), ctypes.c_void_p).value)
for bad in (None, 0, "f"):
    try:
        plug.set_reset_fn(bad)
    except TypeError as error:
        assert "address of a C function" in str(error)
npu.change_current_allocator(plug)
try:
    plug.set_record_stream_fn(1)
except RuntimeError as error:
    assert "before change_current_allocator" in str(error)
npu.empty_cache()
npu.set_per_process_memory_fraction(1.0)
npu.reset_peak_memory_stats()
pool = npu.MemPool()
with npu.use_mem_pool(pool):
    p = npu.caching_allocator_alloc(100)
npu.caching_allocator_delete(p)
del pool
"""
    status, output = run_python(code)
    assert status == 0, output
    for name in calls:
        assert (f"<{name}>" in output) == (not name.endswith("_stream")), (name, output)

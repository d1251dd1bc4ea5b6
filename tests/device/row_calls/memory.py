"""Memory and its allocators."""

import subprocess
import warnings

import pytest
from onnxruntime_npu import npu

from row_calls import calls


@calls("npu.caching_allocator_alloc", "npu.caching_allocator_delete")
def _(c, name):
    c.hold_memory_still()
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
    c.hold_memory_still()
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
    c.hold_memory_still()
    address = c.block()
    flat, nested = npu.memory_stats(), npu.memory_stats_as_nested_dict()
    assert address and flat["active.all.current"] == nested["active"]["all"]["current"] > 0


@calls("npu.reset_accumulated_memory_stats")
def _(c, name):
    c.hold_memory_still()
    npu.caching_allocator_delete(c.block())
    npu.reset_accumulated_memory_stats()
    assert npu.memory_stats()["allocated_bytes.all.allocated"] == 0


@calls(
    "npu.reset_peak_memory_stats", "npu.reset_max_memory_allocated", "npu.reset_max_memory_cached"
)
def _(c, name):
    c.hold_memory_still()
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
    c.hold_memory_still()
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
    c.hold_memory_still()
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

"""Statistics of a pluggable allocator, and memory that is not cached, through torch."""

import subprocess
from pathlib import Path

import pytest
import torch
from null_backend import computed

SOURCE = """
#include <c10/core/CachingDeviceAllocator.h>
#include <stdlib.h>
extern "C" {
void* my_alloc(size_t size, int, void*) { return malloc(size); }
void my_free(void* block, size_t, int, void*) { free(block); }
c10::CachingDeviceAllocator::DeviceStats my_stats(c10::DeviceIndex device) {
  c10::CachingDeviceAllocator::DeviceStats stats;
  stats.allocated_bytes[0].current = 123;
  stats.allocated_bytes[2].peak = 7;
  stats.num_ooms = 5 + device;
  stats.max_split_size = -1;
  return stats;
}
}
"""

SCRIPT = """
import ctypes, sys
from onnxruntime_npu import npu
plug = npu.NPUPluggableAllocator(sys.argv[1], "my_alloc", "my_free")
function = ctypes.CDLL(sys.argv[1]).my_stats
npu.change_current_allocator(plug)
before = npu.memory_stats()
plug.allocator().set_get_device_stats_fn(ctypes.cast(function, ctypes.c_void_p).value)
after = npu.memory_stats()
assert set(after) == set(before), set(after) ^ set(before)
assert npu.memory_allocated() == 123 and after["allocated_bytes.large_pool.peak"] == 7
assert after["num_ooms"] == 5 and after["max_split_size"] == -1
"""


@pytest.mark.no_values
def test_pluggable_allocator_statistics(tmp_path, run_python):
    (tmp_path / "alloc.cc").write_text(SOURCE)
    include = Path(torch.__file__).parent / "include"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = ["c++", "-std=c++20", "-shared", "-fPIC", "-O1", f"-I{include}", abi]
    library = str(tmp_path / "alloc.so")
    subprocess.run([*command, "-o", library, str(tmp_path / "alloc.cc")], check=True)
    script = f"import sys, torch; sys.argv[1:] = [{library!r}]\n" + SCRIPT
    assert run_python(script, ORT_NPU_LOG="error") == (0, "")


UNCACHED_CAPTURE = """
import torch, onnxruntime_npu
x = torch.ones(1000, device="npu")
graph = torch.npu.NPUGraph()
with torch.npu.graph(graph):
    y = (x + 1) * 2
used = torch.npu.memory_reserved()
others = [torch.full((1000,), 7.0, device="npu") for _ in range(50)]
graph.replay()
torch.npu.synchronize()
assert all(bool((o == 7).all()) for o in others)
print(y[0].item(), y[999].item())
del graph, y, others
torch.npu.synchronize()
assert torch.npu.memory_reserved() < used
"""


def test_uncached_capture_keeps_its_memory(run_python):
    assert run_python(UNCACHED_CAPTURE, PYTORCH_NO_NPU_MEMORY_CACHING="1") == (0, "4.0 4.0\n")


UNCACHED_FAILURES = """
import torch, onnxruntime_npu
table = torch.arange(40.0, device="npu").view(10, 4)
bad = torch.full((3,), 99, device="npu")
torch.npu.synchronize()
for i in range(12):
    taken = torch.empty(5 << 20, device="npu")
    try:
        table.index_select(0, bad)
        del taken
        torch.npu.synchronize()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        assert "index" in str(error)
    else:
        raise AssertionError("no error")
print(torch.npu.memory_reserved() < 1 << 20)
"""


def test_uncached_memory_freed_after_failed_work_is_reclaimed(run_python):
    environment = {"PYTORCH_NO_NPU_MEMORY_CACHING": "1", "ORT_NPU_MEMORY_LIMIT": str(64 << 20)}
    assert run_python(UNCACHED_FAILURES, **environment) == (0, "True\n")


FORKED = """
import os
import torch, onnxruntime_npu
t = torch.ones(4, device="npu")
side = torch.npu.Stream()
t.record_stream(side)
side.wait_stream(torch.npu.current_stream())
with torch.npu.stream(side):
    u = t + 1
torch.npu.synchronize()
child = os.fork()
if child == 0:
    del t, u
    try:
        torch.empty(4, device="npu")
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(3)
print(os.waitpid(child, 0)[1], u[0].item())
"""


@pytest.mark.no_values
def test_forked_child_frees_nothing_and_reports_why_it_cannot_allocate(run_python):
    assert run_python(FORKED) == (0, f"0 {computed(2.0)}\n")

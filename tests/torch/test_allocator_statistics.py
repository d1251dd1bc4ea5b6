"""A pluggable allocator's own statistics, in torch's C++ structure."""

import subprocess
from pathlib import Path

import torch

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


def test_statistics_of_a_pluggable_allocator(tmp_path, run_python):
    (tmp_path / "alloc.cc").write_text(SOURCE)
    include = Path(torch.__file__).parent / "include"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = ["c++", "-std=c++20", "-shared", "-fPIC", "-O1", f"-I{include}", abi]
    library = str(tmp_path / "alloc.so")
    subprocess.run([*command, "-o", library, str(tmp_path / "alloc.cc")], check=True)
    script = f"import sys, torch; sys.argv[1:] = [{library!r}]\n" + SCRIPT
    assert run_python(script, ORT_NPU_LOG="error") == (0, "")

// _torch: the device `npu` for torch. Loading it registers everything; Python names it (torch_device/).
#include <ATen/ops/from_blob.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <vector>

#include "python/csrc/torch/allocator_statistics.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/generator.h"
#include "python/csrc/torch/pinned_memory.h"
#include "python/csrc/torch/streams.h"
#include "python/csrc/torch/sync_debug.h"

namespace npu::aten {
namespace py = pybind11;

namespace {

// A tensor over memory of `device` that `owner` keeps.
at::Tensor TensorOver(uintptr_t address, const std::vector<int64_t>& shape, at::ScalarType dtype, int index,
                      py::object owner) {
  Device& device = Runtime::Instance().device(index);
  void* data = reinterpret_cast<void*>(address);
  PyObject* kept = owner.release().ptr();
  const auto release = [&device, kept](void* memory) {
    if (!Py_IsInitialized()) return;
    device.RecordBusyStreams(memory);  // the owner may not know of them
    py::gil_scoped_acquire gil;
    Py_DECREF(kept);
  };
  return at::for_blob(data, shape)
      .deleter(release)
      .options(at::TensorOptions(dtype).device(DeviceAt(index)))
      .target_device(DeviceAt(index))
      .make_tensor();
}

py::dict Counter(const StatCounter& c) {
  py::dict out;
  out["current"] = c.current;
  out["peak"] = c.peak;
  out["allocated"] = c.allocated;
  out["freed"] = c.freed;
  return out;
}

py::dict PinnedStats() {
  const PinnedMemoryStats stats = GetPinnedMemoryStats();
  py::dict out;
  out["allocations"] = Counter(stats.blocks);
  out["allocated_bytes"] = Counter(stats.bytes);
  out["active_requests"] = Counter(stats.active_blocks);
  out["active_bytes"] = Counter(stats.active_bytes);
  return out;
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  m.def("fallback_counts", &FallbackCounts);
  m.def("reset_fallback_counts", &ResetFallbackCounts);
  m.def("set_sync_debug_mode", &SetSyncDebugMode);
  m.def("pinned_memory_stats", &PinnedStats);
  m.def("reset_pinned_memory_stats", &ResetPinnedMemoryStats);
  m.def("allocator_statistics", &AllocatorStatistics);
  m.def("draw_seed", [](int device) { return DrawSeed(SourceOf(std::nullopt, device), CurrentStream(device)); });
  m.def("tensor_over", &TensorOver);
  m.def("default_generator",
        [](int device) { return py::reinterpret_steal<py::object>(THPGenerator_Wrap(DefaultGenerator(device))); });
}

}  // namespace npu::aten

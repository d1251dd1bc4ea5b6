// _torch: the device `npu` for torch. Loading it registers everything; Python names it (torch_device/).
#include <ATen/ops/from_blob.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ep/runtime/generator_key.h"
#include "ep/runtime/log.h"
#include "ep/runtime/worker_thread.h"
#include "python/csrc/torch/allocator_statistics.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/fused_call.h"
#include "python/csrc/torch/generator.h"
#include "python/csrc/torch/operator_kernels.h"
#include "python/csrc/torch/streams.h"
#include "python/csrc/torch/sync_debug.h"
#include "python/csrc/torch/unreleased_graphs.h"

namespace npu::aten {
namespace py = pybind11;

namespace {

// A tensor over memory of `device` that `owner` owns.
at::Tensor TensorOver(uintptr_t address, const std::vector<int64_t>& shape, at::ScalarType dtype, int index,
                      py::object owner) {
  Device& device = Runtime::Instance().device(index);
  void* data = reinterpret_cast<void*>(address);
  PyObject* kept = owner.release().ptr();
  const auto release = [&device, kept](void* memory) {
    if (!Py_IsInitialized()) return;
    try {
      if (!InForkedChild()) device.RecordBusyStreams(memory);  // the owner may not know these streams
    } catch (const std::exception& e) {
      NPU_LOG(kError, "shared memory is kept, because its users are unknown: ", e.what());
      return;
    }
    py::gil_scoped_acquire gil;
    Py_DECREF(kept);
  };
  return at::for_blob(data, shape)
      .deleter(release)
      .options(at::TensorOptions(dtype).device(DeviceAt(index)))
      .target_device(DeviceAt(index))
      .make_tensor();
}

}  // namespace

PYBIND11_MODULE(_torch, m) {
  m.def("fallback_counts", &FallbackCounts);
  m.def("reset_fallback_counts", &ResetFallbackCounts);
  m.def("set_sync_debug_mode", &SetSyncDebugMode);
  m.def("allocator_statistics", &AllocatorStatistics);
  m.def("draw_seed", [](int device) { return DrawSeed(SourceOf(std::nullopt, device), CurrentStream(device)); });
  m.def("draw_position", [](int device, uint64_t counters) {
    const PhiloxState drawn = DrawPosition(SourceOf(std::nullopt, device), CurrentStream(device), counters);
    return std::pair(static_cast<int64_t>(KeyOf(drawn)), static_cast<int64_t>(drawn.offset));
  });
  m.def("tensor_over", &TensorOver);
  m.def("wait_for_unreleased_graphs", &WaitForUnreleasedGraphs, py::call_guard<py::gil_scoped_release>());
  m.def("register_fused", &RegisterFused);
  m.def("give_next_call",
        [](std::vector<at::Tensor> results, int64_t seed) { GiveNextCall({std::move(results), seed}); });
  m.def("kernel_count", [](const std::string& type, const std::string& domain) {
    return OperatorKernels::Of(type.c_str(), domain.c_str()).size();
  });
  m.def("default_generator",
        [](int device) { return py::reinterpret_steal<py::object>(THPGenerator_Wrap(DefaultGenerator(device))); });
}

}  // namespace npu::aten

#include "ep/runtime/device.h"

#include <pybind11/stl.h>

#include "ep/runtime/isa.h"
#include "ep/runtime/thread_pool.h"
#include "python/csrc/module.h"

namespace npu::python {
namespace py = pybind11;
using namespace py::literals;

namespace {

Device& GetDevice(int index) { return Runtime::Instance().device(index); }

py::dict Properties(int index) {
  const DeviceProperties& p = GetDevice(index).properties();
  return py::dict("name"_a = p.name, "total_memory"_a = p.total_memory, "compute_units"_a = p.compute_units,
                  "isa"_a = p.isa, "backend"_a = Runtime::Instance().backend().name());
}

void PutCounter(py::dict& out, const std::string& name, const StatCounter& counter) {
  out[py::str(name + ".current")] = counter.current;
  out[py::str(name + ".peak")] = counter.peak;
  out[py::str(name + ".allocated")] = counter.allocated;
  out[py::str(name + ".freed")] = counter.freed;
}

// The keys of torch.npu.memory_stats().
py::dict MemoryStats(int index) {
  const AllocatorStats stats = GetDevice(index).allocator().Stats();
  const std::pair<const char*, const PoolCounters&> groups[] = {{"allocation", stats.allocation},
                                                                {"segment", stats.segment},
                                                                {"active", stats.active},
                                                                {"inactive_split", stats.inactive_split},
                                                                {"allocated_bytes", stats.allocated_bytes},
                                                                {"reserved_bytes", stats.reserved_bytes},
                                                                {"active_bytes", stats.active_bytes},
                                                                {"inactive_split_bytes", stats.inactive_split_bytes},
                                                                {"requested_bytes", stats.requested_bytes}};
  py::dict out;
  for (const auto& [name, pools] : groups) {
    PutCounter(out, std::string(name) + ".all", pools.all);
    PutCounter(out, std::string(name) + ".small_pool", pools.small_pool);
    PutCounter(out, std::string(name) + ".large_pool", pools.large_pool);
  }
  out["num_alloc_retries"] = stats.num_alloc_retries;
  out["num_ooms"] = stats.num_ooms;
  return out;
}

py::dict CpuFeatureDict() {
  const CpuFeatures& f = Features();
  return py::dict("avx2"_a = f.avx2, "fma"_a = f.fma, "f16c"_a = f.f16c, "avx512"_a = f.avx512,
                  "avx512_bf16"_a = f.avx512_bf16, "avx512_fp16"_a = f.avx512_fp16, "avx512_vnni"_a = f.avx512_vnni,
                  "amx_tile"_a = f.amx_tile, "amx_bf16"_a = f.amx_bf16, "amx_int8"_a = f.amx_int8,
                  "amx_fp16"_a = f.amx_fp16);
}

}  // namespace

void BindDevice(py::module_& m) {
  m.def("device_count", [] { return Runtime::Instance().device_count(); });
  m.def("device_properties", &Properties, "device"_a = 0);
  m.def("memory_stats", &MemoryStats, "device"_a = 0);
  m.def("memory_limit", [](int device) { return GetDevice(device).allocator().limit(); }, "device"_a = 0);
  m.def("reset_peak_memory_stats", [](int device) { GetDevice(device).allocator().ResetPeakStats(); }, "device"_a = 0);
  m.def(
      "empty_cache", [](int device) { GetDevice(device).allocator().EmptyCache(); }, "device"_a = 0,
      py::call_guard<py::gil_scoped_release>());
  m.def(
      "synchronize", [](int device) { GetDevice(device).Synchronize(); }, "device"_a = 0,
      py::call_guard<py::gil_scoped_release>());
  m.def("isa", [] { return NameOf(ActiveIsa()); });
  m.def("cpu_features", &CpuFeatureDict);
  m.def("num_threads", &NumThreads);
}

}  // namespace npu::python

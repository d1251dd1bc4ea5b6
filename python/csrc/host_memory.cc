// Pinned memory for Python: its counters and its cache.
#include "ep/runtime/pinned_memory.h"
#include "python/csrc/counters.h"
#include "python/csrc/module.h"

namespace npu::python {
namespace py = pybind11;
using namespace py::literals;

namespace {

py::dict Duration(const DurationCounter& d) {
  const double average = d.count == 0 ? 0.0 : static_cast<double>(d.total) / static_cast<double>(d.count);
  return py::dict("total"_a = d.total, "max"_a = d.longest, "min"_a = d.shortest, "count"_a = d.count,
                  "avg"_a = average);
}

// The nested form of torch.npu.host_memory_stats().
py::dict NestedHostMemoryStats() {
  const PinnedMemoryStats s = PinnedMemory::Instance().Stats();
  return py::dict("allocations"_a = Counter(s.blocks), "allocated_bytes"_a = Counter(s.bytes),
                  "active_requests"_a = Counter(s.active_blocks), "active_bytes"_a = Counter(s.active_bytes),
                  "host_alloc_time"_a = Duration(s.alloc_time), "host_free_time"_a = Duration(s.free_time),
                  "num_host_alloc"_a = s.blocks.allocated, "num_host_free"_a = s.blocks.freed);
}

}  // namespace

void BindHostMemory(py::module_& m) {
  m.def("host_memory_stats_as_nested_dict", &NestedHostMemoryStats);
  m.def("reset_peak_host_memory_stats", [] { PinnedMemory::Instance().ResetPeakStats(); });
  m.def("reset_accumulated_host_memory_stats", [] { PinnedMemory::Instance().ResetAccumulatedStats(); });
  m.def("host_empty_cache", [] { PinnedMemory::Instance().EmptyCache(); }, py::call_guard<py::gil_scoped_release>());
}

}  // namespace npu::python

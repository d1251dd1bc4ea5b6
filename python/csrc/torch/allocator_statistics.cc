#include "python/csrc/torch/allocator_statistics.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace npu::aten {
namespace py = pybind11;

namespace {

py::dict Counter(const c10::CachingAllocator::Stat& stat) {
  py::dict out;
  out["current"] = stat.current;
  out["peak"] = stat.peak;
  out["allocated"] = stat.allocated;
  out["freed"] = stat.freed;
  return out;
}

py::dict Pools(const c10::CachingAllocator::StatArray& pools) {
  py::dict out;
  out["all"] = Counter(pools[0]);
  out["small_pool"] = Counter(pools[1]);
  out["large_pool"] = Counter(pools[2]);
  return out;
}

}  // namespace

py::dict AllocatorStatistics(uintptr_t address, int device) {
  using Function = c10::CachingDeviceAllocator::DeviceStats(c10::DeviceIndex);
  const auto stats = reinterpret_cast<Function*>(address)(static_cast<c10::DeviceIndex>(device));
  py::dict out;
  out["allocation"] = Pools(stats.allocation);
  out["segment"] = Pools(stats.segment);
  out["active"] = Pools(stats.active);
  out["inactive_split"] = Pools(stats.inactive_split);
  out["allocated_bytes"] = Pools(stats.allocated_bytes);
  out["reserved_bytes"] = Pools(stats.reserved_bytes);
  out["active_bytes"] = Pools(stats.active_bytes);
  out["inactive_split_bytes"] = Pools(stats.inactive_split_bytes);
  out["requested_bytes"] = Pools(stats.requested_bytes);
  out["num_alloc_retries"] = stats.num_alloc_retries;
  out["num_ooms"] = stats.num_ooms;
  out["oversize_allocations"] = Counter(stats.oversize_allocations);
  out["oversize_segments"] = Counter(stats.oversize_segments);
  out["num_sync_all_streams"] = stats.num_sync_all_streams;
  out["num_device_alloc"] = stats.num_device_alloc;
  out["num_device_free"] = stats.num_device_free;
  out["num_oom_rejections"] = stats.num_oom_rejections;
  out["max_split_size"] = stats.max_split_size;
  return out;
}

}  // namespace npu::aten

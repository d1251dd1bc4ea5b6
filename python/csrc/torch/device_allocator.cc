// Tensors take their memory from the runtime's caching allocator, as sessions do.
#include <c10/core/CachingDeviceAllocator.h>

#include <array>
#include <utility>

#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "ep/runtime/log.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

CachingAllocator& AllocatorOf(int device) { return Runtime::Instance().device(device).allocator(); }

// For profiles with profile_memory: negative `bytes` are those of a freed block.
void ReportToProfiler(void* address, int64_t bytes, int device) {
  const AllocatorStats stats = AllocatorOf(device).Stats();
  c10::reportMemoryUsageToProfiler(address, bytes, static_cast<size_t>(stats.allocated_bytes.all.current),
                                   static_cast<size_t>(stats.reserved_bytes.all.current), DeviceAt(device));
}

// A deleter receives only an address, so there is one per device. It is called by destructors, so it never throws.
template <size_t device>
void Free(void* address) noexcept {
  try {
    CachingAllocator& from = AllocatorOf(static_cast<int>(device));
    const bool reported = address != nullptr && c10::memoryProfilingEnabled();
    const auto bytes = reported ? static_cast<int64_t>(from.SizeOf(address)) : 0;
    from.Free(address);
    if (reported) ReportToProfiler(address, -bytes, static_cast<int>(device));
  } catch (const std::exception& e) {
    NPU_LOG(kError, "a tensor's memory on NPU ", device, " could not be freed: ", e.what());
  }
}
template <size_t... devices>
constexpr std::array<c10::DeleterFnPtr, sizeof...(devices)> MakeDeleters(std::index_sequence<devices...>) {
  return {&Free<devices>...};
}
constexpr auto kDeleters = MakeDeleters(std::make_index_sequence<kMaxDevices>());

c10::CachingAllocator::Stat ToStat(const StatCounter& counter) {
  c10::CachingAllocator::Stat stat;
  stat.current = counter.current;
  stat.peak = counter.peak;
  stat.allocated = counter.allocated;
  stat.freed = counter.freed;
  return stat;
}

c10::CachingAllocator::StatArray ToStats(const PoolCounters& counters) {
  using c10::CachingAllocator::StatType;
  c10::CachingAllocator::StatArray stats;
  stats[static_cast<size_t>(StatType::AGGREGATE)] = ToStat(counters.all);
  stats[static_cast<size_t>(StatType::SMALL_POOL)] = ToStat(counters.small_pool);
  stats[static_cast<size_t>(StatType::LARGE_POOL)] = ToStat(counters.large_pool);
  return stats;
}

constexpr size_t kExbibyte = size_t{1} << 60;

class TensorAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = CurrentDevice();
    TORCH_CHECK_WITH(OutOfMemoryError, bytes < kExbibyte, "NPU out of memory. Tried to allocate more than 1EB memory.");
    try {
      void* address = AllocatorOf(device).Allocate(bytes, CurrentStream(device));
      if (address != nullptr && c10::memoryProfilingEnabled())
        ReportToProfiler(address, static_cast<int64_t>(AllocatorOf(device).SizeOf(address)), device);
      return {address, address, kDeleters[static_cast<size_t>(device)], DeviceAt(device)};
    } catch (const Error& e) {
      TORCH_CHECK_WITH(OutOfMemoryError, e.code() != ErrorCode::kOutOfMemory, e.what());
      throw;
    }
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    CurrentStream(CurrentDevice()).Copy(to, from, bytes, CopyKind::kDeviceToDevice);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < Runtime::Instance().device_count(); ++i) AllocatorOf(i).EmptyCache();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    RecordUse(data.get(), data.device(), stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const AllocatorStats from = AllocatorOf(device).Stats();
    c10::CachingDeviceAllocator::DeviceStats to;
    to.allocation = ToStats(from.allocation);
    to.segment = ToStats(from.segment);
    to.active = ToStats(from.active);
    to.inactive_split = ToStats(from.inactive_split);
    to.allocated_bytes = ToStats(from.allocated_bytes);
    to.reserved_bytes = ToStats(from.reserved_bytes);
    to.active_bytes = ToStats(from.active_bytes);
    to.inactive_split_bytes = ToStats(from.inactive_split_bytes);
    to.requested_bytes = ToStats(from.requested_bytes);
    to.num_alloc_retries = from.num_alloc_retries;
    to.num_ooms = from.num_ooms;
    return to;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override { AllocatorOf(device).ResetAccumulatedStats(); }
  void resetPeakStats(c10::DeviceIndex device) override { AllocatorOf(device).ResetPeakStats(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const size_t total = AllocatorOf(device).limit();
    const auto reserved = static_cast<size_t>(AllocatorOf(device).Stats().reserved_bytes.all.current);
    return {total - std::min(total, reserved), total};
  }
};

TensorAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

}  // namespace
}  // namespace npu::aten

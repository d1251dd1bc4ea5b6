#include "ep/provider/allocator.h"

#include <atomic>
#include <cstdint>
#include <utility>

#include "ep/provider/logging.h"
#include "ep/provider/sync_stream.h"
#include "ep/runtime/pinned_memory.h"

namespace npu::provider {
namespace {

thread_local std::string allocation_error;

// Common to both kinds: the function table, and null plus a log line instead of a C++ exception.
class AllocatorBase : public OrtAllocator {
 public:
  AllocatorBase(const Api& api, DeviceState& device, const OrtMemoryInfo* info, const OrtLogger* logger)
      : OrtAllocator{}, api_(api), device_(device), info_(info), logger_(logger) {
    version = ORT_API_VERSION;
    Info = [](const OrtAllocator* self) noexcept { return static_cast<const AllocatorBase*>(self)->info_; };
  }
  virtual ~AllocatorBase() = default;

 protected:
  template <class F>
  void* Try(F&& allocate) noexcept {
    try {
      return allocate();
    } catch (const std::exception& error) {
      Report(error.what());
    } catch (...) {
      Report("unknown error");
    }
    return nullptr;
  }

  const Api& api_;
  DeviceState& device_;

 private:
  void Report(const char* message) noexcept {
    try {
      allocation_error = message;
      Log(api_, logger_, ORT_LOGGING_LEVEL_ERROR, message);
    } catch (...) {
      allocation_error.clear();  // no memory even for the message
    }
  }

  const OrtMemoryInfo* info_;
  const OrtLogger* logger_;
};

void AddStat(const Api& api, OrtKeyValuePairs* pairs, const char* key, int64_t value) {
  api.ort.AddKeyValuePair(pairs, key, std::to_string(value).c_str());
}

class DeviceMemory final : public AllocatorBase {
 public:
  DeviceMemory(const Api& api, DeviceState& device, const OrtMemoryInfo* info, const OrtLogger* logger)
      : AllocatorBase(api, device, info, logger) {
    Alloc = [](OrtAllocator* self, size_t size) noexcept {
      auto& me = *static_cast<DeviceMemory*>(self);
      return me.Try([&] { return me.device_.Allocate(size, nullptr); });
    };
    AllocOnStream = [](OrtAllocator* self, size_t size, OrtSyncStream* stream) noexcept {
      auto& me = *static_cast<DeviceMemory*>(self);
      return me.Try([&] { return me.device_.Allocate(size, StreamOf(me.api_, stream)); });
    };
    Reserve = [](OrtAllocator* self, size_t size) noexcept {
      auto& me = *static_cast<DeviceMemory*>(self);
      me.reserves_.fetch_add(1, std::memory_order_relaxed);
      return me.Try([&] { return me.device_.Allocate(size, nullptr); });
    };
    Free = [](OrtAllocator* self, void* ptr) noexcept {
      auto& me = *static_cast<DeviceMemory*>(self);
      me.Try([&]() -> void* {
        me.device_.Free(ptr);
        return nullptr;
      });
    };
    GetStats = [](const OrtAllocator* self, OrtKeyValuePairs** out) noexcept {
      auto& me = *static_cast<const DeviceMemory*>(self);
      return Guard(me.api_.ort, [&] { *out = me.Stats(); });
    };
    Shrink = [](OrtAllocator* self) noexcept {
      auto& me = *static_cast<DeviceMemory*>(self);
      return Guard(me.api_.ort, [&] { me.device_.device().allocator().EmptyCache(); });
    };
  }

 private:
  // The keys that ORT documents for OrtAllocator::GetStats; they describe the whole device, which has one pool.
  OrtKeyValuePairs* Stats() const {
    const CachingAllocator& allocator = device_.device().allocator();
    const AllocatorStats stats = allocator.Stats();
    OrtKeyValuePairs* pairs = nullptr;
    api_.ort.CreateKeyValuePairs(&pairs);
    AddStat(api_, pairs, "Limit", static_cast<int64_t>(allocator.limit()));
    AddStat(api_, pairs, "InUse", stats.allocated_bytes.all.current);
    AddStat(api_, pairs, "TotalAllocated", stats.reserved_bytes.all.current);
    AddStat(api_, pairs, "MaxInUse", stats.allocated_bytes.all.peak);
    AddStat(api_, pairs, "NumAllocs", stats.allocation.all.allocated);
    AddStat(api_, pairs, "NumReserves", reserves_.load(std::memory_order_relaxed));
    AddStat(api_, pairs, "NumArenaExtensions", stats.segment.all.allocated);
    AddStat(api_, pairs, "NumArenaShrinkages", stats.segment.all.freed);
    return pairs;
  }

  std::atomic<int64_t> reserves_{0};
};

// The process's pinned memory, from which torch allocates, too.
class PinnedHostMemory final : public AllocatorBase {
 public:
  PinnedHostMemory(const Api& api, DeviceState& device, const OrtMemoryInfo* info, const OrtLogger* logger)
      : AllocatorBase(api, device, info, logger) {
    Alloc = [](OrtAllocator* self, size_t size) noexcept {
      auto& me = *static_cast<PinnedHostMemory*>(self);
      return me.Try([&] { return PinnedMemory::Instance().Allocate(size); });
    };
    Reserve = Alloc;
    Free = [](OrtAllocator*, void* ptr) noexcept { PinnedMemory::Instance().Free(ptr); };
    Shrink = [](OrtAllocator* self) noexcept {
      return Guard(static_cast<PinnedHostMemory*>(self)->api_.ort, [] { PinnedMemory::Instance().EmptyCache(); });
    };
  }
};

}  // namespace

OrtAllocator* NewDeviceAllocator(const Api& api, DeviceState& device, const OrtMemoryInfo* info,
                                 const OrtLogger* logger) {
  return new DeviceMemory(api, device, info, logger);
}

OrtAllocator* NewPinnedAllocator(const Api& api, DeviceState& device, const OrtMemoryInfo* info,
                                 const OrtLogger* logger) {
  return new PinnedHostMemory(api, device, info, logger);
}

void DeleteAllocator(OrtAllocator* allocator) noexcept { delete static_cast<AllocatorBase*>(allocator); }

std::string TakeAllocationError() { return std::exchange(allocation_error, {}); }

}  // namespace npu::provider

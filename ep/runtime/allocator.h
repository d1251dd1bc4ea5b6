// The caching allocator: what every tensor of the process on one device comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace npu {

class Backend;
class Stream;

// One counter as torch.npu.memory_stats() shows it.
struct StatCounter {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void Add(int64_t n) {
    current += n;
    allocated += n;
    if (current > peak) peak = current;
  }
  void Sub(int64_t n) {
    current -= n;
    freed += n;
  }
};
// all, small_pool, large_pool
struct PoolCounters {
  StatCounter all, small_pool, large_pool;
};
struct AllocatorStats {
  PoolCounters allocation, segment, active, inactive_split;
  PoolCounters allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  int64_t num_alloc_retries = 0, num_ooms = 0;
};

class CachingAllocator {
 public:
  static constexpr size_t kAlignment = 64;  // of every pointer handed out

  // `limit` bounds reserved bytes.
  CachingAllocator(Backend& backend, int device, size_t limit);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Memory whose first use is ordered on `stream`. 0 bytes gives null. Throws Error(kOutOfMemory)
  // that states requested, allocated, reserved and limit.
  void* Allocate(size_t bytes, Stream& stream);
  // Returns the block to its stream's pool: later work on that stream may get it at once, since it
  // is ordered behind. Throws Error(kInvalidArgument) for a pointer that is not a live allocation.
  void Free(void* ptr);
  // Says that `stream` uses the block too: it is handed out only after that stream passed this point.
  void RecordStream(void* ptr, Stream& stream);
  void EmptyCache();
  // A stream is going away: its free blocks move to where any stream may take them.
  void ReleaseStream(Stream& stream);

  AllocatorStats Stats() const;
  void ResetPeakStats();
  size_t limit() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace npu

// The caching allocator: what every tensor of the process on one device comes from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ep/runtime/allocator_history.h"
#include "ep/runtime/allocator_settings.h"
#include "ep/runtime/allocator_snapshot.h"

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
  StatCounter oversize_allocations, oversize_segments;  // above max_split_size
  int64_t num_alloc_retries = 0, num_ooms = 0;
  int64_t num_sync_all_streams = 0, num_device_alloc = 0, num_device_free = 0;
  int64_t num_oom_rejections = 0;  // by the fraction of the device this process may use
};

// Functions that take the allocator's place: every block comes from `alloc` and goes to `free`, in stream order.
struct PluggableFunctions {
  std::function<void*(size_t bytes, int device, Stream& stream)> alloc;
  std::function<void(void* ptr, size_t bytes, int device, Stream* stream)> free;  // null: the stream is gone
  // Told of RecordStream and EraseStream, where set. The allocator orders the free behind the stream all the same.
  std::function<void(void* ptr, Stream& stream)> record_stream{}, erase_stream{};
};

class CachingAllocator {
 public:
  static constexpr size_t kAlignment = 64;  // of every pointer handed out

  // `limit` bounds reserved bytes.
  CachingAllocator(Backend& backend, int device, size_t limit, AllocatorSettings settings = {});
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Memory whose first use is ordered on `stream`. 0 bytes gives null. Throws Error(kOutOfMemory)
  // that states requested, allocated, active, reserved and limit.
  void* Allocate(size_t bytes, Stream& stream);
  // Returns the block to its stream's pool: later work on that stream may get it at once, since it
  // is ordered behind. For deleters: it never waits or throws, and logs a pointer that is no live allocation. Nothing
  // happens in a forked child.
  void Free(void* ptr) noexcept;
  // For users: throws Error(kInvalidArgument) for a pointer that is not a live allocation.
  void CheckedFree(void* ptr);
  // Says that `stream` uses the block too: it is handed out only after that stream passed this point.
  void RecordStream(void* ptr, Stream& stream);
  // Takes that back: the caller has ordered the stream's use itself.
  void EraseStream(void* ptr, Stream& stream);
  void EmptyCache();
  // Gives back the free ends of expandable segments; throws Error(kInvalidArgument) when they are off.
  void TrimExpandableSegments();
  // The stream of that id is gone, its work done: its free blocks move to where any stream may take them.
  void ReleaseStream(uint64_t stream);
  // Waits for what `stream` has queued, where it owns free blocks: they move likewise.
  void ShareFreeBlocks(Stream& stream);

  AllocatorStats Stats() const;
  void ResetPeakStats();
  void ResetAccumulatedStats();
  size_t limit() const;
  AllocatorSettings settings() const;
  // The environment's settings count as they are at the first allocation, unless settings were made before.
  void ReadEnvironmentAtFirstUse();
  void SetExpandableSegments(bool on);
  // Of the limit that may be reserved, 0 to 1. Memory reserved already stays.
  void SetMemoryFraction(double fraction);

  // Private pools. A pool lives while somebody retains it; memory that it holds then serves only itself, and is cached
  // whatever the settings say: a graph replays into it. Its last user waits for nothing: the memory goes back when the
  // streams that own it have passed. Work on other streams is the caller's to wait for, before.
  void RetainPool(PoolId pool);
  void ReleasePool(PoolId pool);
  // Until EndPool, what is allocated for a stream that `takes_part` accepts comes from the pool. `takes_part` is
  // called with the allocator locked.
  void BeginPool(PoolId pool, std::function<bool(const Stream&)> takes_part);
  void EndPool(PoolId pool);
  int PoolUseCount(PoolId pool) const;

  std::vector<SegmentInfo> Snapshot() const;
  void RecordHistory(size_t max_entries, AllocatorHistory::FramesNow frames_now);
  std::vector<TraceEntry> History() const;
  // Size of the live block that starts at `ptr`, 0 for any other address.
  size_t SizeOf(const void* ptr) const;
  // Where the live block begins that holds an address; null for any other address.
  void* LiveBlockAround(const void* address) const;
  // The block that holds an address, live or cached; false when no segment does.
  bool FindBlock(const void* address, BlockInfo& out) const;

  // Throws Error(kInvalidArgument) once anything was allocated.
  void UsePluggable(PluggableFunctions functions);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace npu

// The caching allocator, which serves every tensor of the process on one device.
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
  std::function<void(void* ptr, size_t bytes, int device, Stream* stream)> free;  // null: it was destroyed
  // Called by RecordStream and EraseStream, if set; the allocator orders the free behind the stream either way.
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
  // Returns the block to its stream's pool: later work on that stream may reuse it immediately, since it is ordered
  // behind the earlier use. For deleters: never waits or throws, and logs a pointer that is not a live allocation. A
  // no-op in a forked child.
  void Free(void* ptr) noexcept;
  // For users: throws Error(kInvalidArgument) for a pointer that is not a live allocation.
  void CheckedFree(void* ptr);
  // Declares that `stream` uses the block too: once freed, it is reused only after the work queued on `stream` until
  // then.
  void RecordStream(void* ptr, Stream& stream);
  // Undoes RecordStream: the caller has ordered the stream's use itself.
  void EraseStream(void* ptr, Stream& stream);
  void EmptyCache();
  // Unmaps the free tails of expandable segments; throws Error(kInvalidArgument) when they are off.
  void TrimExpandableSegments();
  // The stream with this id was destroyed and its work is done: any stream may now take its free blocks.
  void ReleaseStream(uint64_t stream);
  // If `stream` owns free blocks, waits for its queued work; any stream may then take them.
  void ShareFreeBlocks(Stream& stream);

  AllocatorStats Stats() const;
  void ResetPeakStats();
  void ResetAccumulatedStats();
  size_t limit() const;
  AllocatorSettings settings() const;
  // Defers reading the environment's settings to the first allocation, unless settings are changed before it.
  void ReadEnvironmentAtFirstUse();
  void SetExpandableSegments(bool on);
  // Share of the limit that may be reserved, 0 to 1. Memory already reserved is kept.
  void SetMemoryFraction(double fraction);

  // Private pools. A pool exists while it is retained; its memory serves no other pool and is cached whatever the
  // settings say, because a graph replays into it. The last release does not wait: memory is returned when the streams
  // that own it have passed. The caller must first wait for work on other streams.
  void RetainPool(PoolId pool);
  void ReleasePool(PoolId pool);
  // Until EndPool, allocations for streams that `takes_part` accepts come from the pool. `takes_part` is called with
  // the allocator locked.
  void BeginPool(PoolId pool, std::function<bool(const Stream&)> takes_part);
  void EndPool(PoolId pool);
  int PoolUseCount(PoolId pool) const;

  std::vector<SegmentInfo> Snapshot() const;
  void RecordHistory(size_t max_entries, AllocatorHistory::FramesNow frames_now);
  std::vector<TraceEntry> History() const;
  // Size of the live block that starts at `ptr`, 0 for any other address.
  size_t SizeOf(const void* ptr) const;
  // Start of the live block that contains an address; null if there is none.
  void* LiveBlockAround(const void* address) const;
  // The block that contains an address, live or cached; false when no segment does.
  bool FindBlock(const void* address, BlockInfo& out) const;

  // Throws Error(kInvalidArgument) once anything was allocated.
  void UsePluggable(PluggableFunctions functions);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace npu

// Host memory that devices access asynchronously: one registry for all front ends, so that each knows the memory of the
// others. Freed memory is reused only when no copy uses it any more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ep/runtime/allocator.h"
#include "ep/runtime/backend.h"

namespace npu {

// Durations of calls in microseconds, as torch.npu.host_memory_stats() reports them.
struct DurationCounter {
  int64_t total = 0, longest = 0, shortest = 0, count = 0;
  void Add(int64_t us);
};

struct PinnedMemoryStats {
  StatCounter blocks, bytes;                // obtained from the system: in use or cached
  StatCounter active_blocks, active_bytes;  // in use by the caller, by copies or by graphs
  DurationCounter alloc_time, free_time;    // of the system's calls
};

class PinnedMemory {
 public:
  // Limit of cached memory. The blocks cached longest are freed first; a larger block is never cached.
  static constexpr size_t kCacheLimit = size_t{512} << 20;

  // The process's instance. Never destroyed: tensors may be freed after static destructors ran.
  static PinnedMemory& Instance();

  // `backend` null: the runtime's, from the first allocation on.
  explicit PinnedMemory(Backend* backend = nullptr, size_t cache_limit = kCacheLimit);
  ~PinnedMemory();  // waits for the work that uses its memory; no graph may hold any
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Null for 0 bytes. Throws Error(kOutOfMemory); in a forked child Error(kDeviceError).
  void* Allocate(size_t bytes);
  // Never waits: memory in use is reused later. Any other address is ignored. A no-op in a forked child.
  void Free(void* address) noexcept;
  // Whether the address is inside allocated memory.
  bool Contains(const void* address);
  // Records that the work enqueued on `stream` so far uses the memory around `address`; in a capture, the graph keeps
  // that memory instead. False when this is not pinned memory.
  bool RecordUse(const void* address, Stream& stream);
  // Frees the cached memory.
  void EmptyCache();

  PinnedMemoryStats Stats();
  void ResetPeakStats();
  void ResetAccumulatedStats();

 private:
  struct Use;
  struct Block;
  // Blocks removed from the registry, to be freed without its lock.
  using Gone = std::vector<Block*>;

  Backend& backend() const;
  std::shared_ptr<Block> FindLive(const void* address);
  Block* NewBlock(size_t bytes);
  Block* TakeCached(size_t bytes);  // null: none of that size
  void CountActive(size_t bytes);
  void AddUse(Block& block, Backend& backend, Use use, uint64_t before);
  void Release(Block* block) noexcept;  // called for the last reference
  void Settle(Block* block, Gone& gone);
  void SettleWaiting(Gone& gone);
  void Cache(Block* block, Gone& gone);
  void Uncache(std::deque<Block*>& blocks, Gone& gone);
  void GiveBack(const Gone& gone);

  Backend* const given_backend_;
  const size_t cache_limit_;
  std::mutex mutex_;  // never held across a call that may wait
  std::map<uintptr_t, std::shared_ptr<Block>> live_;
  // Freed blocks that work in flight still uses, by one of the streams that each waits for.
  std::map<uint64_t, std::deque<Block*>> waiting_;
  std::array<std::deque<Block*>, 64> cached_;  // by power of two; freed last: at the back
  size_t cached_bytes_ = 0;
  uint64_t frees_ = 0;
  PinnedMemoryStats stats_;
};

}  // namespace npu

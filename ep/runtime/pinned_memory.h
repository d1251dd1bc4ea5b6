// Host memory that devices read and write while the host goes on: one registry for all front ends, so that each knows
// the memory of the others. What is freed serves again, but only when no copy uses it any more.
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

// Of calls, in microseconds, as torch.npu.host_memory_stats() shows them.
struct DurationCounter {
  int64_t total = 0, longest = 0, shortest = 0, count = 0;
  void Add(int64_t us);
};

struct PinnedMemoryStats {
  StatCounter blocks, bytes;                // that the system gave: in use, or kept for reuse
  StatCounter active_blocks, active_bytes;  // in use, by who allocated them, by copies or by graphs
  DurationCounter alloc_time, free_time;    // of the system's calls
};

class PinnedMemory {
 public:
  // Of memory that is kept for reuse. What was kept longest goes first; a greater block is never kept.
  static constexpr size_t kCacheLimit = size_t{512} << 20;

  // The process's. Never destroyed: tensors may be freed after static destructors ran.
  static PinnedMemory& Instance();

  // `backend` null: the runtime's, from the first allocation on.
  explicit PinnedMemory(Backend* backend = nullptr, size_t cache_limit = kCacheLimit);
  ~PinnedMemory();  // waits for what uses its memory; no graph may hold any
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Null for 0 bytes. Throws Error(kOutOfMemory); in a forked child Error(kDeviceError).
  void* Allocate(size_t bytes);
  // Never waits: memory in use serves again later. Any other address is left alone. In a forked child nothing is done.
  void Free(void* address) noexcept;
  // Whether the address lies within memory that is allocated.
  bool Contains(const void* address);
  // Work enqueued on `stream` so far uses the memory around `address`; in a capture the graph will, and keeps it as
  // long as it lives. False when this is no pinned memory.
  bool RecordUse(const void* address, Stream& stream);
  // Gives back what is kept for reuse.
  void EmptyCache();

  PinnedMemoryStats Stats();
  void ResetPeakStats();
  void ResetAccumulatedStats();

 private:
  struct Use;
  struct Block;
  // Blocks that left the registry, to be given to the system without its lock.
  using Gone = std::vector<Block*>;

  Backend& backend() const;
  std::shared_ptr<Block> FindLive(const void* address);
  Block* NewBlock(size_t bytes);
  Block* TakeCached(size_t bytes);  // null: none of that size
  void CountActive(size_t bytes);
  void AddUse(Block& block, Backend& backend, Use use, uint64_t before);
  void Release(Block* block) noexcept;  // nobody holds it any more
  void Settle(Block* block, Gone& gone);
  void SettleWaiting(Gone& gone);
  void Cache(Block* block, Gone& gone);
  void Uncache(std::deque<Block*>& blocks, Gone& gone);
  void GiveBack(const Gone& gone);

  Backend* const given_backend_;
  const size_t cache_limit_;
  std::mutex mutex_;  // never held across a call that may wait
  std::map<uintptr_t, std::shared_ptr<Block>> live_;
  // Freed, and used by work under way: by one of the streams that each waits for.
  std::map<uint64_t, std::deque<Block*>> waiting_;
  std::array<std::deque<Block*>, 64> cached_;  // by the power of two; the last was freed last
  size_t cached_bytes_ = 0;
  uint64_t frees_ = 0;
  PinnedMemoryStats stats_;
};

}  // namespace npu

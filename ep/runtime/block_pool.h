// Segments cut into blocks: best fit, splitting and merging. It knows streams only as numbers and
// waits for nothing; CachingAllocator decides when a block may come back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "ep/runtime/allocator.h"
#include "ep/runtime/backend.h"

namespace npu {

struct Segment;

struct StreamUse {
  uint64_t id;
  BackendStream* handle;
};

struct Block {
  // kHeld: free, but taken out of the lists while its stream is being waited for.
  enum class State { kLive, kPending, kHeld, kFree };

  char* ptr = nullptr;
  size_t size = 0;
  size_t requested = 0;  // what the caller asked for
  uint64_t owner = 0;    // stream that last used it; kAnyStream: no queued work touches it
  State state = State::kLive;
  bool counted_as_split = false;
  Frames frames;  // where it was allocated, while a history is recorded
  int pending_events = 0;
  Segment* segment = nullptr;
  Block* prev = nullptr;  // neighbours within the segment
  Block* next = nullptr;
  std::vector<StreamUse> uses;  // other streams that use it
};

class BlockPool;

struct Segment {
  void* base = nullptr;
  size_t bytes = 0;
  size_t address_space = 0;  // of an expandable segment, whose `bytes` grow; 0: fixed
  bool small = false;
  uint64_t stream = 0;      // that it was made for
  uint64_t last_freed = 0;  // order in which segments became free, for garbage collection
  BlockPool* pool = nullptr;
  Block* first = nullptr;
};

class BlockPool {
 public:
  static constexpr uint64_t kAnyStream = 0;

  BlockPool(PoolId id, const AllocatorSettings& settings, AllocatorStats& stats)
      : id_(id), settings_(settings), stats_(stats) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  PoolId id() const { return id_; }
  bool empty() const { return segments_.empty(); }

  // The best-fitting free block of `owner`, else of any stream, cut to `size`; null when there is none.
  Block* Take(size_t size, bool small, uint64_t owner);
  // Adds a segment and takes `size` bytes of it.
  Block* TakeFromNewSegment(void* base, size_t bytes, size_t size, bool small, uint64_t owner);
  // An expandable segment without memory yet; Grow() puts memory at the end of one.
  Segment* AddExpandable(void* base, size_t address_space, bool small, uint64_t owner);
  Segment* FindExpandable(bool small, uint64_t owner) const;
  // Bytes at the segment's end that `owner` could take if the segment grew.
  size_t FreeTail(const Segment& segment, uint64_t owner) const;
  void Grow(Segment* segment, size_t bytes, uint64_t owner);
  // Takes whole granules off the idle ends of expandable segments; segments without memory leave the pool.
  struct Trimmed {
    void* ptr;
    size_t bytes;
  };
  std::vector<Trimmed> TrimTails(size_t granule);
  std::vector<std::unique_ptr<Segment>> RemoveUnmappedSegments();

  // The block is free: merges it with its neighbours.
  void Put(Block* block);

  // Takes every free block that `owner` owns, or any stream for kAnyStream, out of the lists, until PutIdle() says
  // that no queued work touches it any more.
  std::vector<Block*> HoldOwned(uint64_t owner);
  void PutIdle(const std::vector<Block*>& held);
  // The stream is gone, its work done: its blocks belong to any stream.
  void Disown(uint64_t owner);
  // Segments that are one free block which no queued work touches; they leave the pool.
  // The longest free first, and no more of them than `enough` bytes need.
  std::vector<std::unique_ptr<Segment>> RemoveIdleSegments(size_t enough = SIZE_MAX);

  template <class F>
  void ForEachSegment(F&& f) const {
    for (const auto& [raw, segment] : segments_) f(*segment);
  }

 private:
  struct Order {  // by owner, then best fit, then address
    bool operator()(const Block* a, const Block* b) const {
      if (a->owner != b->owner) return a->owner < b->owner;
      if (a->size != b->size) return a->size < b->size;
      return a->ptr < b->ptr;
    }
  };
  using FreeList = std::set<Block*, Order>;

  FreeList& ListOf(const Block& block) { return block.segment->small ? small_ : large_; }
  bool Oversize(size_t size) const { return size >= settings_.max_split_size; }
  Block* LastBlock(const Segment& segment) const;
  Block* TakeFrom(FreeList& list, size_t size, uint64_t list_owner, uint64_t new_owner);
  void Cut(Block* block, size_t size);
  void Absorb(Block* block, Block* neighbour);
  void Insert(Block* block);
  void Remove(Block* block);

  const PoolId id_;
  const AllocatorSettings& settings_;
  AllocatorStats& stats_;
  uint64_t frees_ = 0;
  FreeList small_, large_;
  std::unordered_map<Segment*, std::unique_ptr<Segment>> segments_;
};

// Adds to, or takes from, the counters of a pool and of both together.
inline void Count(PoolCounters& counters, bool small, int64_t n) {
  counters.all.Add(n);
  (small ? counters.small_pool : counters.large_pool).Add(n);
}
inline void Discount(PoolCounters& counters, bool small, int64_t n) {
  counters.all.Sub(n);
  (small ? counters.small_pool : counters.large_pool).Sub(n);
}

}  // namespace npu

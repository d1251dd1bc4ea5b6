// Segments split into blocks: best fit, splitting and merging. Knows streams only by id and never waits;
// CachingAllocator decides when a block may return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "ep/runtime/allocator.h"
#include "ep/runtime/block.h"

namespace npu {

class BlockPool;

struct Segment {
  void* base = nullptr;
  size_t bytes = 0;
  size_t address_space = 0;  // of an expandable segment, whose `bytes` grow; 0: fixed
  bool small = false;
  bool plugged = false;     // made by a pluggable allocator's function
  uint64_t stream = 0;      // stream that it was made for
  uint64_t last_freed = 0;  // order in which segments became free, for garbage collection
  BlockPool* pool = nullptr;
  Block* first = nullptr;
  Segment* to_user_next = nullptr;
};

class BlockPool {
 public:
  static constexpr uint64_t kAnyStream = 0;

  BlockPool(PoolId id, const AllocatorSettings& settings, AllocatorStats& stats, BlockIndex& index)
      : id_(id), settings_(settings), stats_(stats), index_(index) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  PoolId id() const { return id_; }
  bool empty() const { return segments_.empty(); }

  // The best-fitting free block of `owner`, else of any stream, split to `size`; null when there is none.
  Block* Take(size_t size, bool small, uint64_t owner);
  // Adds a segment and takes `size` bytes of it.
  Block* TakeFromNewSegment(void* base, size_t bytes, size_t size, bool small, uint64_t owner);
  // An expandable segment without memory yet; Grow() appends memory.
  Segment* AddExpandable(void* base, size_t address_space, bool small, uint64_t owner);
  Segment* FindExpandable(bool small, uint64_t owner) const;
  // Bytes at the segment's end that `owner` could take if the segment grew.
  size_t FreeTail(const Segment& segment, uint64_t owner) const;
  void Grow(Segment* segment, size_t bytes, uint64_t owner);
  // TrimTails() cuts whole granules off the idle tails of expandable segments; RemoveUnmappedSegments() removes the
  // segments without memory.
  struct Trimmed {
    void* ptr;
    size_t bytes;
  };
  std::vector<Trimmed> TrimTails(size_t granule);
  std::vector<std::unique_ptr<Segment>> RemoveUnmappedSegments();

  // Adds a free block, merged with its neighbours.
  void Put(Block* block);

  // The streams that own free blocks.
  std::vector<uint64_t> Owners() const;
  // Takes the free blocks of `owner` out of the lists until PutIdle() is called, when no queued work touches them any
  // more. Returns a chain by `held_next`.
  Block* Hold(uint64_t owner);
  void PutIdle(Block* held);
  // Any stream may take the blocks of the streams that `gone` accepts: destroyed ones whose work is done.
  void Disown(const std::function<bool(uint64_t owner)>& gone);
  // Removes the segment that `block` fills from the pool, and drops the block.
  std::unique_ptr<Segment> RemoveSegmentOf(Block* block);
  // Removes segments that are one free block which no queued work touches: the longest free first, and no more of them
  // than `enough` bytes need.
  std::vector<std::unique_ptr<Segment>> RemoveIdleSegments(size_t enough = SIZE_MAX);

  template <class F>
  void ForEachSegment(F&& f) const {
    for (const auto& [raw, segment] : segments_) f(*segment);
  }

 private:
  FreeList& ListOf(const Block& block) { return block.segment->small ? small_ : large_; }
  bool Oversize(size_t size) const { return size >= settings_.max_split_size; }
  Block* LastBlock(const Segment& segment) const;
  Block* TakeFrom(FreeList& list, size_t size, uint64_t list_owner, uint64_t new_owner);
  void Cut(Block* block, size_t size);
  void Absorb(Block* block, Block* neighbour);
  void Insert(Block* block);
  void Remove(Block* block);
  void Hold(Block* block);

  const PoolId id_;
  const AllocatorSettings& settings_;
  AllocatorStats& stats_;
  BlockIndex& index_;
  uint64_t frees_ = 0;
  FreeList small_, large_;
  std::unordered_map<Segment*, std::unique_ptr<Segment>> segments_;
};

// Adds to, or subtracts from, the counters of one pool size and of all.
inline void Count(PoolCounters& counters, bool small, int64_t n) {
  counters.all.Add(n);
  (small ? counters.small_pool : counters.large_pool).Add(n);
}
inline void Discount(PoolCounters& counters, bool small, int64_t n) {
  counters.all.Sub(n);
  (small ? counters.small_pool : counters.large_pool).Sub(n);
}

}  // namespace npu

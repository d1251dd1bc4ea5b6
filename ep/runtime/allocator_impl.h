// What the parts of the caching allocator share; nobody else includes it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ep/runtime/allocator.h"
#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/block_pool.h"
#include "ep/runtime/stream.h"

namespace npu {

struct CachingAllocator::Impl {
  Impl(Backend& b, int d, size_t l, AllocatorSettings s)
      : backend(b), device(d), limit(l), settings(std::move(s)), pool({}, settings, stats) {}

  struct Pending {
    BackendEvent* event;
    Block* block;
  };
  struct PrivatePool {
    std::unique_ptr<BlockPool> blocks;
    int use_count = 0;
  };
  struct PoolScope {
    PoolId id;
    std::function<bool(const Stream&)> takes_part;
  };
  // A block that a pluggable function, or the device itself, made.
  struct Direct {
    size_t bytes;
    uint64_t stream;
  };
  using Action = TraceEntry::Action;

  Backend& backend;
  const int device;
  const size_t limit;

  // Held by whoever waits for streams in order to make memory free, and by a stream that goes away.
  // Always taken before `mutex`, which is never held across a wait: a task may free memory.
  std::mutex reclaim_mutex;
  mutable std::mutex mutex;
  AllocatorSettings settings;
  bool environment_pending = false;
  AllocatorStats stats;
  AllocatorHistory history;
  BlockPool pool;
  std::map<PoolId, PrivatePool> private_pools;
  std::vector<PoolScope> scopes;
  std::unordered_map<void*, Block*> live;
  std::unordered_map<void*, Direct> direct_live;
  std::unordered_map<uint64_t, BackendStream*> streams;  // that ever allocated, and still exist
  std::unordered_map<uint64_t, Stream*> direct_streams;  // likewise, of direct blocks
  std::deque<Pending> pending;
  std::vector<BackendEvent*> spare_events;
  PluggableFunctions direct;  // empty: the cache is in use
  bool used = false;

  size_t cap() const { return static_cast<size_t>(static_cast<double>(limit) * settings.memory_fraction); }
  size_t reserved() const { return static_cast<size_t>(stats.reserved_bytes.all.current); }

  void Trace(Action action, const void* address, size_t size, uint64_t stream, PoolId id, Frames frames = nullptr) {
    if (history.recording())
      history.Add({action, reinterpret_cast<uint64_t>(address), size, stream, id, 0, std::move(frames)});
  }

  template <class F>
  void ForEachPool(F&& f) {
    f(pool);
    for (auto& [id, p] : private_pools) f(*p.blocks);
  }
  BlockPool& PoolOf(const Stream& stream);

  // Memory from the device and back: allocator_segments.cc.
  size_t PreferredSegment(size_t size, bool small) const;
  bool Allowed(size_t bytes) const { return bytes <= cap() && reserved() <= cap() - bytes; }
  Block* TakeFromNewSegment(BlockPool& from, size_t bytes, size_t size, bool small, uint64_t owner);
  Block* TakeFromGrownSegment(BlockPool& from, size_t bytes, size_t size, bool small, uint64_t owner);
  void PutBack(Block* block);
  // Blocks whose recorded streams have passed come back to their pools.
  void ProcessEvents();
  BackendEvent* TakeEvent();
  // Waits until no queued work touches any free block; those may then serve any stream, and go back to the
  // device. Called with reclaim_mutex held and `lock` locked.
  void Reclaim(std::unique_lock<std::mutex>& lock);
  // The same of one owner's free blocks, or of all for kAnyStream.
  void WaitForFreeBlocks(std::unique_lock<std::mutex>& lock, uint64_t owner);
  void GiveBack(const std::vector<std::unique_ptr<Segment>>& segments, PoolId id);
  void TrimTails(BlockPool& from);
  void ReleaseIdleSegments();
  // A pool that somebody retains keeps its memory: a graph replays into it.
  void ReleaseUnusedPools();
  // Above the threshold the segments that were free longest go, before the device is asked for more.
  void CollectGarbage(std::unique_lock<std::mutex>& lock, size_t request);
  // The slow path: nothing cached fits and the device gives no more.
  Block* TakeAfterReclaim(std::unique_lock<std::mutex>& lock, BlockPool& from, size_t size, bool small, uint64_t owner);

  [[noreturn]] void FailOutOfMemory(size_t bytes, uint64_t stream);
  void CountLive(bool small, size_t size, size_t requested);
  void DiscountLive(bool small, size_t size, size_t requested);
  void* AllocateDirect(size_t bytes, Stream& stream);
  // False when `ptr` is no direct block. The function runs behind the work that may still use the block.
  bool FreeDirect(void* ptr);
};

}  // namespace npu

// Shared by the source files of the caching allocator; not for inclusion elsewhere.
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
#include "ep/runtime/device.h"

namespace npu {

struct StreamState;

// The use of a block by a stream. When the block is freed, an event marks the use in the stream's order; the use has
// passed when the work before the event is done. Created when the use is declared, so that freeing needs no memory.
struct StreamUse {
  StreamState* stream = nullptr;  // null: the stream was destroyed, its work is done
  BackendEvent* event = nullptr;
  Block* block = nullptr;  // or a chain of held blocks
  StreamUse* next = nullptr;
};

// A stream that has allocated or used a block; kept until it is destroyed and its work is done.
struct StreamState {
  uint64_t id;
  BackendStream* handle;
  Device* device;
  // Uses whose events are recorded. They pass in this order, so only the first needs a query.
  StreamUse *first = nullptr, *last = nullptr;
};

struct CachingAllocator::Impl {
  Impl(Backend& b, int d, size_t l, AllocatorSettings s)
      : backend(b), device(d), limit(l), settings(std::move(s)), pool({}, settings, stats, index) {}

  struct PrivatePool {
    std::unique_ptr<BlockPool> blocks;
    int use_count = 0;
    int scopes = 0;                 // open ones
    int pins = 0;                   // threads that allocate from it and have released the lock
    StreamUse* deferred = nullptr;  // of blocks that were freed while a scope was open
  };
  struct PoolScope {
    PoolId id;
    std::function<bool(const Stream&)> takes_part;
  };
  using Action = TraceEntry::Action;

  // Holds `mutex`. The destructor calls the user's free functions, without the lock.
  class Locked {
   public:
    explicit Locked(Impl& impl) : impl_(impl), lock_(impl.mutex) {}
    ~Locked() {
      if (!lock_.owns_lock()) lock_.lock();  // a call made without the lock threw
      if (impl_.to_user != nullptr) impl_.FreeToUser(lock_);
    }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;
    std::unique_lock<std::mutex>& lock() { return lock_; }

   private:
    Impl& impl_;
    std::unique_lock<std::mutex> lock_;
  };

  Backend& backend;
  const int device;
  const size_t limit;

  mutable std::mutex mutex;  // never held across a wait: a task may free memory
  AllocatorSettings settings;
  bool environment_pending = false;
  AllocatorStats stats;
  AllocatorHistory history;
  BlockIndex index;
  BlockPool pool;
  std::map<PoolId, PrivatePool> private_pools;
  bool released_pools = false;  // an unretained pool may have memory to return
  std::vector<PoolScope> scopes;
  std::unordered_map<uint64_t, StreamState> streams;

  std::deque<StreamUse> uses;       // all that were ever created
  StreamUse* spare_uses = nullptr;  // those that are free
  StreamUse* resting = nullptr;     // likewise, but their events may still be waited for
  int waiting = 0;                  // threads that wait for events
  StreamUse* unrecorded = nullptr;  // whose event or signal failed; retried
  std::vector<StreamState*> busy;   // with uses that may not have passed; capacity is reserved for every stream
  size_t turn = 0;                  // round-robin position in `busy`
  Segment* to_user = nullptr;       // segments to return to a pluggable function, without the lock

  PluggableFunctions plug;  // empty: memory comes from the device
  bool used = false;

  size_t cap() const { return static_cast<size_t>(static_cast<double>(limit) * settings.memory_fraction); }
  size_t reserved() const { return static_cast<size_t>(stats.reserved_bytes.all.current); }
  bool plugged() const { return static_cast<bool>(plug.alloc); }
  // False for a pool whose blocks return to their source when freed. A private pool always caches, because a graph
  // replays into it.
  bool Caches(const BlockPool& p) const { return &p != &pool || (settings.caching && !plugged()); }

  void Trace(Action action, const void* address, size_t size, uint64_t stream, PoolId id,
             Frames frames = nullptr) noexcept;

  template <class F>
  void ForEachPool(F&& f) {
    f(pool);
    for (auto& [id, p] : private_pools) f(*p.blocks);
  }
  BlockPool& PoolOf(const Stream& stream);
  PrivatePool* PrivateOf(const BlockPool& p);  // null: the default pool
  StreamState& Known(Stream& stream);
  Block* LiveAt(const void* ptr) const;

  // Getting memory from the device or a pluggable function, and returning it: allocator_segments.cc.
  size_t PreferredSegment(const BlockPool& from, size_t size, bool small) const;
  bool Allowed(size_t bytes) const { return bytes <= cap() && reserved() <= cap() - bytes; }
  Block* TakeFromNewSegment(BlockPool& from, size_t bytes, size_t size, bool small, uint64_t owner);
  Block* TakeFromGrownSegment(BlockPool& from, size_t bytes, size_t size, bool small, uint64_t owner);
  Block* TakeFromPlug(std::unique_lock<std::mutex>& lock, BlockPool& from, size_t size, bool small, Stream& stream);
  void GiveBack(std::unique_ptr<Segment> segment, PoolId id);
  void TrimTails(BlockPool& from);
  // Returns the segments of a pool that no queued work touches.
  void ReleaseIdleSegments(BlockPool& from);
  // Returns the memory of unretained pools that no queued work touches; the rest follows when that work has passed.
  void ReturnReleasedPools() noexcept;
  // Above the threshold, returns the segments that were free longest before more is requested from the device.
  void CollectGarbage(std::unique_lock<std::mutex>& lock, size_t request);
  // The slow path, when no free block fits.
  Block* TakeMore(std::unique_lock<std::mutex>& lock, BlockPool& from, size_t size, bool small, Stream& stream);

  // Blocks that a stream may still use: allocator_uses.cc.
  StreamUse* TakeUse(StreamState& stream);
  void PutUse(StreamUse* use);
  // Marks the use in the order of its stream. It passes immediately if nothing is queued there.
  void Record(StreamUse* use) noexcept;
  void Append(StreamUse* use);
  void Pass(StreamUse* use);
  void PutBack(Block* block);
  // Returns blocks whose uses have passed to their pools, in at most `steps` steps.
  void Collect(size_t steps = SIZE_MAX) noexcept;
  // Any stream may take the free blocks of `owner` (kAnyStream: of all owners) once the work queued now has passed.
  void HoldFreeBlocks(BlockPool& from, uint64_t owner);
  void HoldFreeBlocks(uint64_t owner);
  // Waits for the recorded uses of freed blocks, on all streams or on one.
  void WaitForUses(std::unique_lock<std::mutex>& lock, const StreamState* only = nullptr);
  // Waits until no queued work touches any free block, so that any stream may take it and idle segments may be
  // returned.
  void Reclaim(std::unique_lock<std::mutex>& lock);
  // Any stream may take the blocks of destroyed streams, except in a pool whose capture is still open.
  void DisownGoneStreams();
  void FreeToUser(std::unique_lock<std::mutex>& lock) noexcept;

  void Retain(PoolId id);
  void Release(PoolId id);
  bool Free(void* ptr) noexcept;  // false: no live block starts there
  [[noreturn]] void FailOutOfMemory(size_t bytes, uint64_t stream);
  void CountLive(const Block& block);
  void DiscountLive(const Block& block);
};

}  // namespace npu

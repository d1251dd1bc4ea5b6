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
#include "ep/runtime/device.h"

namespace npu {

struct StreamState;

// That a stream uses a block. When the block is freed, its turn comes in the stream's order; it has passed when the
// stream's work of before is done. Made when the use is said, so that to free needs no memory.
struct StreamUse {
  StreamState* stream = nullptr;  // null: the stream is gone, its work done
  BackendEvent* event = nullptr;
  Block* block = nullptr;  // or a chain of held blocks
  StreamUse* next = nullptr;
};

// A stream that ever allocated or used a block, until its work is done and it is gone.
struct StreamState {
  uint64_t id;
  BackendStream* handle;
  Device* device;
  // Uses whose events are recorded. They pass in this order, so that only the first is ever asked.
  StreamUse *first = nullptr, *last = nullptr;
};

// Throws Error(kUnsupported) in a forked child, where threads that held a lock are not there to let it go.
void CheckProcess();

struct CachingAllocator::Impl {
  Impl(Backend& b, int d, size_t l, AllocatorSettings s)
      : backend(b), device(d), limit(l), settings(std::move(s)), pool({}, settings, stats, index) {}

  struct PrivatePool {
    std::unique_ptr<BlockPool> blocks;
    int use_count = 0;
    int scopes = 0;                 // open ones
    int pins = 0;                   // threads that allocate from it and have let the lock go
    StreamUse* deferred = nullptr;  // of blocks that were freed while a scope was open
  };
  struct PoolScope {
    PoolId id;
    std::function<bool(const Stream&)> takes_part;
  };
  using Action = TraceEntry::Action;

  // Holds `mutex`. The user's functions are called at the end, without it.
  class Locked {
   public:
    explicit Locked(Impl& impl) : impl_(impl), lock_(impl.mutex) {}
    ~Locked() {
      if (!lock_.owns_lock()) lock_.lock();  // thrown by what was called without it
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
  bool released_pools = false;  // one that nobody retains may have memory to give back
  std::vector<PoolScope> scopes;
  std::unordered_map<uint64_t, StreamState> streams;

  std::deque<StreamUse> uses;       // all that were ever made
  StreamUse* spare_uses = nullptr;  // those that are free
  StreamUse* resting = nullptr;     // likewise, but their events may still be waited for
  int waiting = 0;                  // threads that wait for events
  StreamUse* unrecorded = nullptr;  // whose event or signal failed: tried again
  std::vector<StreamState*> busy;   // with uses that may not have passed; has room for every stream
  size_t turn = 0;                  // in `busy`
  Segment* to_user = nullptr;       // that go back to a pluggable function without the lock

  PluggableFunctions plug;  // empty: memory comes from the device
  bool used = false;

  size_t cap() const { return static_cast<size_t>(static_cast<double>(limit) * settings.memory_fraction); }
  size_t reserved() const { return static_cast<size_t>(stats.reserved_bytes.all.current); }
  bool plugged() const { return static_cast<bool>(plug.alloc); }
  // False for the pool whose every block comes from its source and goes back there. A private pool keeps its memory
  // in any case: a graph replays into it.
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

  // Memory from the device, or a pluggable function, and back: allocator_segments.cc.
  size_t PreferredSegment(const BlockPool& from, size_t size, bool small) const;
  bool Allowed(size_t bytes) const { return bytes <= cap() && reserved() <= cap() - bytes; }
  Block* TakeFromNewSegment(BlockPool& from, size_t bytes, size_t size, bool small, uint64_t owner);
  Block* TakeFromGrownSegment(BlockPool& from, size_t bytes, size_t size, bool small, uint64_t owner);
  Block* TakeFromPlug(std::unique_lock<std::mutex>& lock, BlockPool& from, size_t size, bool small, Stream& stream);
  void GiveBack(std::unique_ptr<Segment> segment, PoolId id);
  void TrimTails(BlockPool& from);
  // The segments of a pool that no queued work touches go back.
  void ReleaseIdleSegments(BlockPool& from);
  // What nobody retains goes back as far as no work touches it; the rest when that work has passed.
  void ReturnReleasedPools() noexcept;
  // Above the threshold the segments that were free longest go, before the device is asked for more.
  void CollectGarbage(std::unique_lock<std::mutex>& lock, size_t request);
  // Nothing that is free fits.
  Block* TakeMore(std::unique_lock<std::mutex>& lock, BlockPool& from, size_t size, bool small, Stream& stream);

  // Blocks that a stream may still use: allocator_uses.cc.
  StreamUse* TakeUse(StreamState& stream);
  void PutUse(StreamUse* use);
  // The block's turn in the order of the stream that uses it. It passes at once if nothing is queued there.
  void Record(StreamUse* use) noexcept;
  void Append(StreamUse* use);
  void Pass(StreamUse* use);
  void PutBack(Block* block);
  // Blocks whose uses have passed come back to their pools. Asks and passes at most `steps` times.
  void Collect(size_t steps = SIZE_MAX) noexcept;
  // The free blocks of one owner, or of all for kAnyStream, may serve any stream once what is queued now has passed.
  void HoldFreeBlocks(BlockPool& from, uint64_t owner);
  void HoldFreeBlocks(uint64_t owner);
  // Waits for what is queued on the streams that freed blocks wait for, or on one of them.
  void WaitForUses(std::unique_lock<std::mutex>& lock, const StreamState* only = nullptr);
  // Waits until no queued work touches any free block; those may then serve any stream, and go back to the device.
  void Reclaim(std::unique_lock<std::mutex>& lock);
  // Blocks of streams that are gone serve any stream, but in a pool whose capture is still open.
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

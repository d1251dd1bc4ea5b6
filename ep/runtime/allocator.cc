#include "ep/runtime/allocator.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/block_pool.h"
#include "ep/runtime/error.h"
#include "ep/runtime/stream.h"

namespace npu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kLargestSmall = kMiB;  // requests up to here come from small segments
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kOwnSegment = 10 * kMiB;
constexpr size_t kSegmentRounding = 2 * kMiB;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

// When the limit leaves no room for the preferred segment.
size_t SmallestSegment(size_t size, bool small) { return RoundUp(size, small ? 4096 : kSegmentRounding); }

std::string Readable(size_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return Concat(bytes, " bytes");
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 6; ++unit) value /= 1024;
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s", value, kUnits[unit]);
  return text;
}

BlockInfo InfoOf(const Block& block) {
  const auto state = block.state == Block::State::kLive      ? BlockInfo::State::kAllocated
                     : block.state == Block::State::kPending ? BlockInfo::State::kPendingFree
                                                             : BlockInfo::State::kInactive;
  return {reinterpret_cast<uint64_t>(block.ptr), block.size, block.requested, state, block.frames};
}

}  // namespace

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

  BlockPool& PoolOf(const Stream& stream) {
    for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope)
      if (scope->takes_part(stream)) return *private_pools.at(scope->id).blocks;
    return pool;
  }

  size_t PreferredSegment(size_t size, bool small) const {
    if (small) return kSmallSegment;
    return size < kOwnSegment ? settings.large_segment_size : RoundUp(size, kSegmentRounding);
  }

  bool Allowed(size_t bytes) const { return bytes <= cap() && reserved() <= cap() - bytes; }

  Block* TakeFromNewSegment(BlockPool& from, size_t bytes, size_t size, bool small, uint64_t owner) {
    if (settings.expandable_segments) return TakeFromGrownSegment(from, bytes, size, small, owner);
    if (!Allowed(bytes)) return nullptr;
    ++stats.num_device_alloc;
    void* base = backend.AllocDevice(device, bytes);
    if (base == nullptr) return nullptr;
    Trace(Action::kSegmentAlloc, base, bytes, owner, from.id());
    return from.TakeFromNewSegment(base, bytes, size, small, owner);
  }

  Block* TakeFromGrownSegment(BlockPool& from, size_t bytes, size_t size, bool small, uint64_t owner) {
    BackendExtensions& extensions = BackendExtensions::Of(backend);
    Segment* segment = from.FindExpandable(small, owner);
    if (segment == nullptr) {
      const size_t address_space = RoundUp(limit, kSegmentRounding);
      void* base = extensions.ReserveAddresses(device, address_space);
      if (base == nullptr) return nullptr;
      segment = from.AddExpandable(base, address_space, small, owner);
    }
    const size_t growth = RoundUp(bytes - std::min(bytes, from.FreeTail(*segment, owner)), kSegmentRounding);
    if (growth > segment->address_space - segment->bytes || !Allowed(growth)) return nullptr;
    char* end = static_cast<char*>(segment->base) + segment->bytes;
    ++stats.num_device_alloc;
    if (!extensions.MapDevice(device, end, growth)) return nullptr;
    Trace(Action::kSegmentMap, end, growth, owner, from.id());
    from.Grow(segment, growth, owner);
    return from.Take(size, small, owner);
  }

  void PutBack(Block* block) {
    Discount(stats.active, block->segment->small, 1);
    Discount(stats.active_bytes, block->segment->small, static_cast<int64_t>(block->size));
    Trace(Action::kFreeCompleted, block->ptr, block->requested, block->owner, block->segment->pool->id());
    block->segment->pool->Put(block);
  }

  // Blocks whose recorded streams have passed come back to their pools.
  void ProcessEvents() {
    for (auto it = pending.begin(); it != pending.end();) {
      if (!backend.EventQuery(it->event)) {
        ++it;
        continue;
      }
      spare_events.push_back(it->event);
      if (--it->block->pending_events == 0) PutBack(it->block);
      it = pending.erase(it);
    }
  }

  BackendEvent* TakeEvent() {
    if (spare_events.empty()) return backend.CreateEvent(/*timing=*/false);
    BackendEvent* event = spare_events.back();
    spare_events.pop_back();
    return event;
  }

  // Waits until no queued work touches any free block; those may then serve any stream, and go back to the
  // device. Called with reclaim_mutex held and `lock` locked.
  void Reclaim(std::unique_lock<std::mutex>& lock) {
    ++stats.num_sync_all_streams;
    std::vector<BackendEvent*> events;
    for (const Pending& p : pending) events.push_back(p.event);
    lock.unlock();
    for (BackendEvent* event : events) backend.EventSynchronize(event);
    lock.lock();
    ProcessEvents();

    std::vector<std::pair<BlockPool*, std::vector<Block*>>> held;
    std::vector<BackendStream*> owners;
    ForEachPool([&](BlockPool& p) { held.emplace_back(&p, p.HoldOwned()); });
    for (const auto& [from, blocks] : held)
      for (const Block* block : blocks) owners.push_back(streams.at(block->owner));
    lock.unlock();
    std::sort(owners.begin(), owners.end());
    owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
    // Events, not StreamSynchronize: that would swallow the error of a failed kernel.
    BackendEvent* passed = backend.CreateEvent(/*timing=*/false);
    for (BackendStream* owner : owners) {
      backend.EventRecord(passed, owner);
      backend.EventSynchronize(passed);
    }
    backend.DestroyEvent(passed);
    lock.lock();
    for (const auto& [from, blocks] : held) from->PutIdle(blocks);
  }

  void GiveBack(const std::vector<std::unique_ptr<Segment>>& segments, PoolId id) {
    for (const auto& segment : segments) {
      if (segment->address_space > 0) {
        BackendExtensions::Of(backend).ReleaseAddresses(segment->base, segment->address_space);
        continue;
      }
      ++stats.num_device_free;
      backend.FreeDevice(device, segment->base, segment->bytes);
      Trace(Action::kSegmentFree, segment->base, segment->bytes, segment->stream, id);
    }
  }

  void TrimTails(BlockPool& from) {
    for (const BlockPool::Trimmed& tail : from.TrimTails(kSegmentRounding)) {
      ++stats.num_device_free;
      BackendExtensions::Of(backend).UnmapDevice(device, tail.ptr, tail.bytes);
      Trace(Action::kSegmentUnmap, tail.ptr, tail.bytes, 0, from.id());
    }
    GiveBack(from.RemoveUnmappedSegments(), from.id());
  }

  // A pool that somebody retains keeps its memory: a graph replays into it.
  void ReleaseIdleSegments() {
    GiveBack(pool.RemoveIdleSegments(), pool.id());
    TrimTails(pool);
    for (auto it = private_pools.begin(); it != private_pools.end();) {
      PrivatePool& p = it->second;
      if (p.use_count > 0) {
        ++it;
        continue;
      }
      GiveBack(p.blocks->RemoveIdleSegments(), it->first);
      TrimTails(*p.blocks);
      it = p.blocks->empty() ? private_pools.erase(it) : std::next(it);
    }
  }

  // Above the threshold the segments that were free longest go, before the device is asked for more.
  void CollectGarbage(std::unique_lock<std::mutex>& lock, size_t request) {
    const auto threshold = static_cast<size_t>(settings.garbage_collection_threshold * static_cast<double>(cap()));
    if (threshold == 0 || reserved() + request <= threshold) return;
    lock.unlock();
    std::lock_guard reclaim(reclaim_mutex);
    lock.lock();
    if (reserved() + request <= threshold) return;
    Reclaim(lock);
    GiveBack(pool.RemoveIdleSegments(reserved() + request - threshold), pool.id());
  }

  // The slow path: nothing cached fits and the device gives no more.
  Block* TakeAfterReclaim(std::unique_lock<std::mutex>& lock, BlockPool& from, size_t size, bool small,
                          uint64_t owner) {
    lock.unlock();
    std::lock_guard reclaim(reclaim_mutex);
    lock.lock();
    ++stats.num_alloc_retries;
    Reclaim(lock);
    if (Block* block = from.Take(size, small, owner)) return block;
    ReleaseIdleSegments();
    if (Block* block = TakeFromNewSegment(from, PreferredSegment(size, small), size, small, owner)) return block;
    return TakeFromNewSegment(from, SmallestSegment(size, small), size, small, owner);
  }

  [[noreturn]] void FailOutOfMemory(size_t bytes, uint64_t stream) {
    ++stats.num_ooms;
    const size_t available = cap() - std::min(cap(), reserved());
    if (settings.memory_fraction < 1 && bytes <= limit) ++stats.num_oom_rejections;
    Trace(Action::kOutOfMemory, reinterpret_cast<void*>(available), bytes, stream, {});
    const auto now = [](const StatCounter& counter) { return Readable(static_cast<size_t>(counter.current)); };
    const std::string allowed = settings.memory_fraction < 1 ? Concat(Readable(cap()), " allowed; ") : "";
    Fail(ErrorCode::kOutOfMemory, "NPU out of memory. Tried to allocate ", Readable(bytes), " (NPU ", device, "; ",
         Readable(limit), " total capacity; ", now(stats.allocated_bytes.all), " already allocated; ",
         now(stats.active_bytes.all), " current active; ", Readable(available), " free; ", allowed,
         now(stats.reserved_bytes.all),
         " reserved in total). Free tensors, or raise ORT_NPU_MEMORY_LIMIT if the machine has more memory. If reserved "
         "memory is much larger than allocated memory, set max_split_size_mb in PYTORCH_NPU_ALLOC_CONF to avoid "
         "fragmentation");
  }

  void CountLive(bool small, size_t size, size_t requested) {
    Count(stats.allocation, small, 1);
    Count(stats.allocated_bytes, small, static_cast<int64_t>(size));
    Count(stats.requested_bytes, small, static_cast<int64_t>(requested));
    if (size >= settings.max_split_size) stats.oversize_allocations.Add(1);
  }
  void DiscountLive(bool small, size_t size, size_t requested) {
    Discount(stats.allocation, small, 1);
    Discount(stats.allocated_bytes, small, static_cast<int64_t>(size));
    Discount(stats.requested_bytes, small, static_cast<int64_t>(requested));
    if (size >= settings.max_split_size) stats.oversize_allocations.Sub(1);
  }

  void* AllocateDirect(size_t bytes, Stream& stream) {
    void* ptr = direct.alloc(bytes, device, stream);  // a user's function: not under the lock
    std::lock_guard lock(mutex);
    if (ptr == nullptr) FailOutOfMemory(bytes, stream.id());
    direct_live[ptr] = {bytes, stream.id()};
    direct_streams.try_emplace(stream.id(), &stream);
    return ptr;
  }

  // False when `ptr` is no direct block. The function runs behind the work that may still use the block.
  bool FreeDirect(void* ptr) {
    std::unique_lock lock(mutex);
    const auto it = direct_live.find(ptr);
    if (it == direct_live.end()) return false;
    const size_t bytes = it->second.bytes;
    const auto found = direct_streams.find(it->second.stream);
    Stream* owner = found == direct_streams.end() ? nullptr : found->second;
    direct_live.erase(it);
    lock.unlock();  // launching may wait for room in the queue
    if (owner == nullptr || owner->Query()) {
      direct.free(ptr, bytes, device, owner);
    } else {
      owner->HostCallback(Task([this, ptr, bytes, owner] { direct.free(ptr, bytes, device, owner); }));
    }
    return true;
  }
};

CachingAllocator::CachingAllocator(Backend& backend, int device, size_t limit, AllocatorSettings settings)
    : impl_(std::make_unique<Impl>(backend, device, limit, std::move(settings))) {
  Impl& a = *impl_;
  if (a.settings.caching) return;
  a.direct.alloc = [&a](size_t bytes, int d, Stream&) { return a.backend.AllocDevice(d, bytes); };
  a.direct.free = [&a](void* ptr, size_t bytes, int d, Stream*) { a.backend.FreeDevice(d, ptr, bytes); };
}

CachingAllocator::~CachingAllocator() {
  Impl& a = *impl_;
  for (const Impl::Pending& p : a.pending) {
    a.backend.EventSynchronize(p.event);
    a.backend.DestroyEvent(p.event);
  }
  for (BackendEvent* event : a.spare_events) a.backend.DestroyEvent(event);
  a.ForEachPool([&](BlockPool& pool) {
    pool.ForEachSegment([&](const Segment& s) {
      if (s.address_space == 0) {
        a.backend.FreeDevice(a.device, s.base, s.bytes);
      } else {
        BackendExtensions::Of(a.backend).UnmapDevice(a.device, s.base, s.bytes);
        BackendExtensions::Of(a.backend).ReleaseAddresses(s.base, s.address_space);
      }
    });
  });
}

void* CachingAllocator::Allocate(size_t bytes, Stream& stream) {
  if (bytes == 0) return nullptr;
  Impl& a = *impl_;
  Frames frames = a.history.FramesNowOrNull();
  std::unique_lock lock(a.mutex);
  if (a.environment_pending) {
    a.settings = AllocatorSettingsFromEnvironment();
    a.environment_pending = false;
  }
  a.used = true;
  if (a.direct.alloc) {
    lock.unlock();
    return a.AllocateDirect(bytes, stream);
  }
  // Checked before rounding, which would overflow near SIZE_MAX.
  if (bytes > a.cap() || bytes > SIZE_MAX / 2) a.FailOutOfMemory(bytes, stream.id());
  const size_t size = a.settings.RoundSize(bytes);
  const bool small = size <= kLargestSmall;
  a.streams.try_emplace(stream.id(), stream.handle());
  if (!a.pending.empty()) a.ProcessEvents();
  BlockPool& pool = a.scopes.empty() ? a.pool : a.PoolOf(stream);

  Block* block = pool.Take(size, small, stream.id());
  if (block == nullptr) {
    const size_t segment = a.PreferredSegment(size, small);
    if (a.settings.garbage_collection_threshold > 0) a.CollectGarbage(lock, segment);
    block = a.TakeFromNewSegment(pool, segment, size, small, stream.id());
  }
  if (block == nullptr) block = a.TakeAfterReclaim(lock, pool, size, small, stream.id());
  if (block == nullptr) a.FailOutOfMemory(bytes, stream.id());

  block->requested = bytes;
  block->frames = frames;
  a.live.emplace(block->ptr, block);
  a.CountLive(small, block->size, bytes);
  Count(a.stats.active, small, 1);
  Count(a.stats.active_bytes, small, static_cast<int64_t>(block->size));
  a.Trace(TraceEntry::Action::kAlloc, block->ptr, bytes, stream.id(), pool.id(), std::move(frames));
  return block->ptr;
}

void CachingAllocator::Free(void* ptr) {
  if (ptr == nullptr) return;
  Impl& a = *impl_;
  if (a.direct.alloc && a.FreeDirect(ptr)) return;
  std::lock_guard lock(a.mutex);
  const auto it = a.live.find(ptr);
  NPU_CHECK(it != a.live.end(), "free: expected a live allocation of NPU ", a.device, ", got ", ptr,
            ", an invalid device pointer: it was freed before or was never allocated here");
  Block* block = it->second;
  const bool small = block->segment->small;
  std::vector<BackendEvent*> events;  // recorded first: should one fail, the block is still live
  for (const StreamUse& use : block->uses) {
    events.push_back(a.TakeEvent());
    a.backend.EventRecord(events.back(), use.handle);
  }
  for (BackendEvent* event : events) a.pending.push_back({event, block});
  block->pending_events = static_cast<int>(events.size());
  block->uses.clear();
  a.live.erase(it);
  a.DiscountLive(small, block->size, block->requested);
  a.Trace(TraceEntry::Action::kFreeRequested, ptr, block->requested, block->owner, block->segment->pool->id());
  if (block->pending_events > 0) {
    block->state = Block::State::kPending;
  } else {
    a.PutBack(block);
  }
}

void CachingAllocator::RecordStream(void* ptr, Stream& stream) {
  if (ptr == nullptr) return;
  Impl& a = *impl_;
  if (a.direct.record_stream) a.direct.record_stream(ptr, stream);  // a user's function: not under the lock
  std::lock_guard lock(a.mutex);
  if (const auto direct = a.direct_live.find(ptr); direct != a.direct_live.end()) {
    // Such a block goes to its function behind one stream's work: the owner waits for this one.
    if (direct->second.stream == stream.id()) return;
    BackendEvent* passed = a.backend.CreateEvent(/*timing=*/false);
    a.backend.EventRecord(passed, stream.handle());
    if (const auto owner = a.direct_streams.find(direct->second.stream); owner != a.direct_streams.end())
      a.backend.StreamWaitEvent(owner->second->handle(), passed);
    a.backend.DestroyEvent(passed);
    return;
  }
  const auto it = a.live.find(ptr);
  NPU_CHECK(it != a.live.end(), "record_stream: expected a live allocation of NPU ", a.device, ", got ", ptr);
  Block* block = it->second;
  if (block->owner == stream.id()) return;
  for (const StreamUse& use : block->uses)
    if (use.id == stream.id()) return;
  block->uses.push_back({stream.id(), stream.handle()});
}

void CachingAllocator::EraseStream(void* ptr, Stream& stream) {
  Impl& a = *impl_;
  if (a.direct.erase_stream) a.direct.erase_stream(ptr, stream);
  std::lock_guard lock(a.mutex);
  if (a.direct_live.count(ptr) > 0) return;  // its owner waits for the stream since RecordStream
  const auto it = a.live.find(ptr);
  NPU_CHECK(it != a.live.end(), "erase_stream: expected a live allocation of NPU ", a.device, ", got ", ptr);
  std::erase_if(it->second->uses, [&](const StreamUse& use) { return use.id == stream.id(); });
}

void CachingAllocator::EmptyCache() {
  Impl& a = *impl_;
  std::lock_guard reclaim(a.reclaim_mutex);
  std::unique_lock lock(a.mutex);
  a.Reclaim(lock);
  a.ReleaseIdleSegments();
}

void CachingAllocator::TrimExpandableSegments() {
  Impl& a = *impl_;
  std::lock_guard reclaim(a.reclaim_mutex);
  std::unique_lock lock(a.mutex);
  NPU_CHECK(a.settings.expandable_segments,
            "Unsupported config: there are no expandable segments to trim; please enable expandable_segments in "
            "PYTORCH_NPU_ALLOC_CONF");
  a.Reclaim(lock);
  a.TrimTails(a.pool);
}

void CachingAllocator::ReleaseStream(Stream& stream) {
  Impl& a = *impl_;
  std::lock_guard reclaim(a.reclaim_mutex);
  std::lock_guard lock(a.mutex);
  a.ProcessEvents();
  a.streams.erase(stream.id());
  a.direct_streams.erase(stream.id());
  a.ForEachPool([&](BlockPool& pool) { pool.Disown(stream.id()); });
  // The stream has drained, so there is nothing left to wait for on it.
  for (auto& [ptr, block] : a.live) std::erase_if(block->uses, [&](const StreamUse& u) { return u.id == stream.id(); });
}

AllocatorStats CachingAllocator::Stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

namespace {

template <class F>
void ForEachCounter(AllocatorStats& s, F&& f) {
  for (PoolCounters* counters : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes,
                                 &s.reserved_bytes, &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes})
    for (StatCounter* counter : {&counters->all, &counters->small_pool, &counters->large_pool}) f(*counter);
  f(s.oversize_allocations);
  f(s.oversize_segments);
}

}  // namespace

void CachingAllocator::ResetPeakStats() {
  std::lock_guard lock(impl_->mutex);
  ForEachCounter(impl_->stats, [](StatCounter& counter) { counter.peak = counter.current; });
}

void CachingAllocator::ResetAccumulatedStats() {
  std::lock_guard lock(impl_->mutex);
  AllocatorStats& s = impl_->stats;
  ForEachCounter(s, [](StatCounter& counter) { counter.allocated = counter.freed = 0; });
  s.num_alloc_retries = s.num_ooms = s.num_sync_all_streams = 0;
  s.num_device_alloc = s.num_device_free = s.num_oom_rejections = 0;
}

size_t CachingAllocator::limit() const { return impl_->limit; }

void CachingAllocator::ReadEnvironmentAtFirstUse() {
  std::lock_guard lock(impl_->mutex);
  impl_->environment_pending = impl_->settings.caching;  // without caching, it is as it was made
}

AllocatorSettings CachingAllocator::settings() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->settings;
}

void CachingAllocator::SetExpandableSegments(bool on) {
  std::lock_guard lock(impl_->mutex);
  const AllocatorSettings& s = impl_->settings;
  NPU_CHECK(!on || (s.max_split_size == SIZE_MAX && s.garbage_collection_threshold == 0),
            "expandable_segments:True cannot be combined with max_split_size_mb or garbage_collection_threshold");
  impl_->settings.expandable_segments = on;
  impl_->environment_pending = false;
}

void CachingAllocator::SetMemoryFraction(double fraction) {
  NPU_CHECK(fraction >= 0 && fraction <= 1, "expected a memory fraction from 0 to 1, got ", fraction);
  std::lock_guard lock(impl_->mutex);
  impl_->settings.memory_fraction = fraction;
  impl_->environment_pending = false;
}

void CachingAllocator::RetainPool(PoolId id) {
  NPU_CHECK(id != PoolId{}, "expected the id of a private pool, got (0, 0), which is the default pool's");
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  Impl::PrivatePool& pool = a.private_pools[id];
  if (pool.blocks == nullptr) pool.blocks = std::make_unique<BlockPool>(id, a.settings, a.stats);
  ++pool.use_count;
}

void CachingAllocator::ReleasePool(PoolId id) {
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  const auto it = a.private_pools.find(id);
  NPU_CHECK(it != a.private_pools.end() && it->second.use_count > 0, "no private pool (", id.first, ", ", id.second,
            ") is in use on NPU ", a.device);
  if (--it->second.use_count == 0 && it->second.blocks->empty()) a.private_pools.erase(it);
}

void CachingAllocator::BeginPool(PoolId id, std::function<bool(const Stream&)> takes_part) {
  RetainPool(id);
  std::lock_guard lock(impl_->mutex);
  impl_->scopes.push_back({id, std::move(takes_part)});
}

void CachingAllocator::EndPool(PoolId id) {
  Impl& a = *impl_;
  {
    std::lock_guard lock(a.mutex);
    const auto last = std::find_if(a.scopes.rbegin(), a.scopes.rend(), [&](const auto& s) { return s.id == id; });
    NPU_CHECK(last != a.scopes.rend(), "no allocation to the private pool (", id.first, ", ", id.second, ") was begun");
    a.scopes.erase(std::next(last).base());
  }
  ReleasePool(id);
}

int CachingAllocator::PoolUseCount(PoolId id) const {
  std::lock_guard lock(impl_->mutex);
  const auto it = impl_->private_pools.find(id);
  return it == impl_->private_pools.end() ? 0 : it->second.use_count;
}

std::vector<SegmentInfo> CachingAllocator::Snapshot() const {
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  std::vector<SegmentInfo> out;
  a.ForEachPool([&](BlockPool& pool) {
    pool.ForEachSegment([&](const Segment& segment) {
      SegmentInfo info;
      info.address = reinterpret_cast<uint64_t>(segment.base);
      info.total = segment.bytes;
      info.stream = segment.stream;
      info.pool = pool.id();
      info.small = segment.small;
      info.expandable = segment.address_space > 0;
      for (const Block* block = segment.first; block != nullptr; block = block->next) {
        info.blocks.push_back(InfoOf(*block));
        const BlockInfo& b = info.blocks.back();
        if (b.state == BlockInfo::State::kAllocated) info.allocated += b.size;
        if (b.state != BlockInfo::State::kInactive) info.active += b.size;
        info.requested += b.requested;
      }
      out.push_back(std::move(info));
    });
  });
  std::sort(out.begin(), out.end(), [](const auto& x, const auto& y) { return x.address < y.address; });
  a.Trace(TraceEntry::Action::kSnapshot, nullptr, 0, 0, {});
  return out;
}

void CachingAllocator::RecordHistory(size_t max_entries, AllocatorHistory::FramesNow frames_now) {
  std::lock_guard lock(impl_->mutex);
  impl_->history.Record(max_entries, frames_now);
}

std::vector<TraceEntry> CachingAllocator::History() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->history.Entries();
}

size_t CachingAllocator::SizeOf(const void* ptr) const {
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  if (const auto it = a.live.find(const_cast<void*>(ptr)); it != a.live.end()) return it->second->size;
  const auto it = a.direct_live.find(const_cast<void*>(ptr));
  return it == a.direct_live.end() ? 0 : it->second.bytes;
}

void* CachingAllocator::LiveBlockAround(const void* address) const {
  if (SizeOf(address) > 0) return const_cast<void*>(address);
  BlockInfo block;
  if (!FindBlock(address, block) || block.state != BlockInfo::State::kAllocated) return nullptr;
  return reinterpret_cast<void*>(block.address);
}

bool CachingAllocator::FindBlock(const void* address, BlockInfo& out) const {
  const auto wanted = reinterpret_cast<uint64_t>(address);
  for (const SegmentInfo& segment : Snapshot())
    for (const BlockInfo& block : segment.blocks)
      if (wanted >= block.address && wanted - block.address < block.size) {
        out = block;
        return true;
      }
  return false;
}

void CachingAllocator::UsePluggable(PluggableFunctions functions) {
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  NPU_CHECK(functions.alloc && functions.free, "expected a pluggable allocator with an alloc and a free function");
  NPU_CHECK(!a.used, "the allocator of NPU ", a.device,
            " was used already: change the allocator before anything is allocated on the device");
  a.direct = std::move(functions);
}

}  // namespace npu

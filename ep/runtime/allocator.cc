#include "ep/runtime/allocator.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "ep/runtime/block_pool.h"
#include "ep/runtime/error.h"
#include "ep/runtime/stream.h"

namespace npu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kRounding = 512;
constexpr size_t kLargestSmall = kMiB;  // requests up to here come from small segments
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kLargeSegment = 20 * kMiB;  // shared by requests below kOwnSegment
constexpr size_t kOwnSegment = 10 * kMiB;
constexpr size_t kSegmentRounding = 2 * kMiB;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t PreferredSegment(size_t size, bool small) {
  if (small) return kSmallSegment;
  return size < kOwnSegment ? kLargeSegment : RoundUp(size, kSegmentRounding);
}

// When the limit leaves no room for the preferred one.
size_t SmallestSegment(size_t size, bool small) { return RoundUp(size, small ? 4096 : kSegmentRounding); }

std::string Readable(size_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return Concat(bytes, " bytes");
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 6; ++unit) value /= 1024;
  char text[64];
  std::snprintf(text, sizeof text, "%.2f %s (%zu bytes)", value, kUnits[unit], bytes);
  return text;
}

}  // namespace

struct CachingAllocator::Impl {
  Impl(Backend& b, int d, size_t l) : backend(b), device(d), limit(l), pool(stats) {}

  struct Pending {
    BackendEvent* event;
    Block* block;
  };

  Backend& backend;
  const int device;
  const size_t limit;

  // Held by whoever waits for streams in order to make memory free, and by a stream that goes away.
  // Always taken before `mutex`, which is never held across a wait: a task may free memory.
  std::mutex reclaim_mutex;
  mutable std::mutex mutex;
  AllocatorStats stats;
  BlockPool pool;
  std::unordered_map<void*, Block*> live;
  std::unordered_map<uint64_t, BackendStream*> streams;  // that ever allocated, and still exist
  std::deque<Pending> pending;
  std::vector<BackendEvent*> spare_events;

  Block* TakeFromNewSegment(size_t bytes, size_t size, bool small, uint64_t owner) {
    const auto reserved = static_cast<size_t>(stats.reserved_bytes.all.current);
    if (bytes > limit || reserved > limit - bytes) return nullptr;
    void* base = backend.AllocDevice(device, bytes);
    return base == nullptr ? nullptr : pool.TakeFromNewSegment(base, bytes, size, small, owner);
  }

  void PutBack(Block* block) {
    Discount(stats.active, block->segment->small, 1);
    Discount(stats.active_bytes, block->segment->small, static_cast<int64_t>(block->size));
    pool.Put(block);
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
    std::vector<BackendEvent*> events;
    for (const Pending& p : pending) events.push_back(p.event);
    lock.unlock();
    for (BackendEvent* event : events) backend.EventSynchronize(event);
    lock.lock();
    ProcessEvents();

    const std::vector<Block*> held = pool.HoldOwned();
    std::vector<BackendStream*> owners;
    for (const Block* block : held) owners.push_back(streams.at(block->owner));
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
    pool.PutIdle(held);
  }

  void ReleaseIdleSegments() {
    for (const auto& segment : pool.RemoveIdleSegments()) backend.FreeDevice(device, segment->base, segment->bytes);
  }

  // The slow path: nothing cached fits and the device gives no more.
  Block* TakeAfterReclaim(std::unique_lock<std::mutex>& lock, size_t size, bool small, uint64_t owner) {
    lock.unlock();
    std::lock_guard reclaim(reclaim_mutex);
    lock.lock();
    ++stats.num_alloc_retries;
    Reclaim(lock);
    if (Block* block = pool.Take(size, small, owner)) return block;
    ReleaseIdleSegments();
    if (Block* block = TakeFromNewSegment(PreferredSegment(size, small), size, small, owner)) return block;
    return TakeFromNewSegment(SmallestSegment(size, small), size, small, owner);
  }

  [[noreturn]] void FailOutOfMemory(size_t bytes) {
    ++stats.num_ooms;
    Fail(ErrorCode::kOutOfMemory, "NPU ", device, " is out of memory: requested ", Readable(bytes), ", allocated ",
         Readable(static_cast<size_t>(stats.allocated_bytes.all.current)), ", reserved ",
         Readable(static_cast<size_t>(stats.reserved_bytes.all.current)), ", limit ", Readable(limit),
         "; free tensors, or raise ORT_NPU_MEMORY_LIMIT if the machine has more memory");
  }
};

CachingAllocator::CachingAllocator(Backend& backend, int device, size_t limit)
    : impl_(std::make_unique<Impl>(backend, device, limit)) {}

CachingAllocator::~CachingAllocator() {
  Impl& a = *impl_;
  for (const Impl::Pending& p : a.pending) {
    a.backend.EventSynchronize(p.event);
    a.backend.DestroyEvent(p.event);
  }
  for (BackendEvent* event : a.spare_events) a.backend.DestroyEvent(event);
  a.pool.ForEachSegment([&](const Segment& s) { a.backend.FreeDevice(a.device, s.base, s.bytes); });
}

void* CachingAllocator::Allocate(size_t bytes, Stream& stream) {
  if (bytes == 0) return nullptr;
  Impl& a = *impl_;
  std::unique_lock lock(a.mutex);
  // Checked before rounding, which would overflow near SIZE_MAX.
  if (bytes > a.limit || bytes > SIZE_MAX / 2) a.FailOutOfMemory(bytes);
  const size_t size = RoundUp(bytes, kRounding);
  const bool small = size <= kLargestSmall;
  a.streams.try_emplace(stream.id(), stream.handle());
  if (!a.pending.empty()) a.ProcessEvents();

  Block* block = a.pool.Take(size, small, stream.id());
  if (block == nullptr) block = a.TakeFromNewSegment(PreferredSegment(size, small), size, small, stream.id());
  if (block == nullptr) block = a.TakeAfterReclaim(lock, size, small, stream.id());
  if (block == nullptr) a.FailOutOfMemory(bytes);

  block->requested = bytes;
  a.live.emplace(block->ptr, block);
  Count(a.stats.allocation, small, 1);
  Count(a.stats.allocated_bytes, small, static_cast<int64_t>(block->size));
  Count(a.stats.requested_bytes, small, static_cast<int64_t>(bytes));
  Count(a.stats.active, small, 1);
  Count(a.stats.active_bytes, small, static_cast<int64_t>(block->size));
  return block->ptr;
}

void CachingAllocator::Free(void* ptr) {
  if (ptr == nullptr) return;
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  const auto it = a.live.find(ptr);
  NPU_CHECK(it != a.live.end(), "free: expected a live allocation of NPU ", a.device, ", got ", ptr,
            ", which was freed before or was never allocated here");
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
  Discount(a.stats.allocation, small, 1);
  Discount(a.stats.allocated_bytes, small, static_cast<int64_t>(block->size));
  Discount(a.stats.requested_bytes, small, static_cast<int64_t>(block->requested));
  if (block->pending_events > 0) {
    block->state = Block::State::kPending;
  } else {
    a.PutBack(block);
  }
}

void CachingAllocator::RecordStream(void* ptr, Stream& stream) {
  if (ptr == nullptr) return;
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  const auto it = a.live.find(ptr);
  NPU_CHECK(it != a.live.end(), "record_stream: expected a live allocation of NPU ", a.device, ", got ", ptr);
  Block* block = it->second;
  if (block->owner == stream.id()) return;
  for (const StreamUse& use : block->uses)
    if (use.id == stream.id()) return;
  block->uses.push_back({stream.id(), stream.handle()});
}

void CachingAllocator::EmptyCache() {
  Impl& a = *impl_;
  std::lock_guard reclaim(a.reclaim_mutex);
  std::unique_lock lock(a.mutex);
  a.Reclaim(lock);
  a.ReleaseIdleSegments();
}

void CachingAllocator::ReleaseStream(Stream& stream) {
  Impl& a = *impl_;
  std::lock_guard reclaim(a.reclaim_mutex);
  std::lock_guard lock(a.mutex);
  a.ProcessEvents();
  a.streams.erase(stream.id());
  a.pool.Disown(stream.id());
  // The stream has drained, so there is nothing left to wait for on it.
  for (auto& [ptr, block] : a.live) std::erase_if(block->uses, [&](const StreamUse& u) { return u.id == stream.id(); });
}

AllocatorStats CachingAllocator::Stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

void CachingAllocator::ResetPeakStats() {
  std::lock_guard lock(impl_->mutex);
  AllocatorStats& s = impl_->stats;
  for (PoolCounters* counters : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes,
                                 &s.reserved_bytes, &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes})
    for (StatCounter* counter : {&counters->all, &counters->small_pool, &counters->large_pool})
      counter->peak = counter->current;
}

size_t CachingAllocator::limit() const { return impl_->limit; }

}  // namespace npu

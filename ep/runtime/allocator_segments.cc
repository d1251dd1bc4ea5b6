// Memory from the device to the pools and back: segments, and what to do when the device gives no more.
#include <algorithm>

#include "ep/runtime/allocator_impl.h"

namespace npu {
namespace {

constexpr size_t kSmallSegment = 2 << 20;
constexpr size_t kOwnSegment = 10 << 20;  // requests from here on get a segment of their own size
constexpr size_t kSegmentRounding = 2 << 20;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

// When the limit leaves no room for the preferred segment.
size_t SmallestSegment(size_t size, bool small) { return RoundUp(size, small ? 4096 : kSegmentRounding); }

}  // namespace

size_t CachingAllocator::Impl::PreferredSegment(size_t size, bool small) const {
  if (small) return kSmallSegment;
  return size < kOwnSegment ? settings.large_segment_size : RoundUp(size, kSegmentRounding);
}

Block* CachingAllocator::Impl::TakeFromNewSegment(BlockPool& from, size_t bytes, size_t size, bool small,
                                                  uint64_t owner) {
  if (settings.expandable_segments) return TakeFromGrownSegment(from, bytes, size, small, owner);
  if (!Allowed(bytes)) return nullptr;
  ++stats.num_device_alloc;
  void* base = backend.AllocDevice(device, bytes);
  if (base == nullptr) return nullptr;
  Trace(Action::kSegmentAlloc, base, bytes, owner, from.id());
  return from.TakeFromNewSegment(base, bytes, size, small, owner);
}

Block* CachingAllocator::Impl::TakeFromGrownSegment(BlockPool& from, size_t bytes, size_t size, bool small,
                                                    uint64_t owner) {
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

void CachingAllocator::Impl::GiveBack(const std::vector<std::unique_ptr<Segment>>& segments, PoolId id) {
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

void CachingAllocator::Impl::TrimTails(BlockPool& from) {
  for (const BlockPool::Trimmed& tail : from.TrimTails(kSegmentRounding)) {
    ++stats.num_device_free;
    BackendExtensions::Of(backend).UnmapDevice(device, tail.ptr, tail.bytes);
    Trace(Action::kSegmentUnmap, tail.ptr, tail.bytes, 0, from.id());
  }
  GiveBack(from.RemoveUnmappedSegments(), from.id());
}

void CachingAllocator::Impl::ReleaseIdleSegments() {
  GiveBack(pool.RemoveIdleSegments(), pool.id());
  TrimTails(pool);
  ReleaseUnusedPools();
}

void CachingAllocator::Impl::ReleaseUnusedPools() {
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

BackendEvent* CachingAllocator::Impl::TakeEvent() {
  if (spare_events.empty()) return backend.CreateEvent(/*timing=*/false);
  BackendEvent* event = spare_events.back();
  spare_events.pop_back();
  return event;
}

void CachingAllocator::Impl::PutBack(Block* block) {
  Discount(stats.active, block->segment->small, 1);
  Discount(stats.active_bytes, block->segment->small, static_cast<int64_t>(block->size));
  Trace(Action::kFreeCompleted, block->ptr, block->requested, block->owner, block->segment->pool->id());
  block->segment->pool->Put(block);
}

void CachingAllocator::Impl::ProcessEvents() {
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

void CachingAllocator::Impl::Reclaim(std::unique_lock<std::mutex>& lock) {
  ++stats.num_sync_all_streams;
  std::vector<BackendEvent*> events;
  for (const Pending& p : pending) events.push_back(p.event);
  lock.unlock();
  for (BackendEvent* event : events) backend.EventSynchronize(event);
  lock.lock();
  ProcessEvents();
  WaitForFreeBlocks(lock, BlockPool::kAnyStream);
}

void CachingAllocator::Impl::WaitForFreeBlocks(std::unique_lock<std::mutex>& lock, uint64_t owner) {
  std::vector<std::pair<BlockPool*, std::vector<Block*>>> held;
  std::vector<BackendStream*> owners;
  ForEachPool([&](BlockPool& p) { held.emplace_back(&p, p.HoldOwned(owner)); });
  for (const auto& [from, blocks] : held)
    for (const Block* block : blocks) owners.push_back(streams.at(block->owner));
  lock.unlock();
  std::sort(owners.begin(), owners.end());
  owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
  // Events, not StreamSynchronize: that would swallow the error of a failed kernel.
  BackendEvent* passed = backend.CreateEvent(/*timing=*/false);
  for (BackendStream* stream : owners) {
    backend.EventRecord(passed, stream);
    backend.EventSynchronize(passed);
  }
  backend.DestroyEvent(passed);
  lock.lock();
  for (const auto& [from, blocks] : held) from->PutIdle(blocks);
}

void CachingAllocator::Impl::CollectGarbage(std::unique_lock<std::mutex>& lock, size_t request) {
  const auto threshold = static_cast<size_t>(settings.garbage_collection_threshold * static_cast<double>(cap()));
  if (threshold == 0 || reserved() + request <= threshold) return;
  lock.unlock();
  std::lock_guard reclaim(reclaim_mutex);
  lock.lock();
  if (reserved() + request <= threshold) return;
  Reclaim(lock);
  GiveBack(pool.RemoveIdleSegments(reserved() + request - threshold), pool.id());
}

Block* CachingAllocator::Impl::TakeAfterReclaim(std::unique_lock<std::mutex>& lock, BlockPool& from, size_t size,
                                                bool small, uint64_t owner) {
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

}  // namespace npu

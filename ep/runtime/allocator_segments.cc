// Moves memory between the device and the pools, in segments, and handles a device that is out of memory.
#include <algorithm>
#include <iterator>

#include "ep/runtime/allocator_impl.h"
#include "ep/runtime/error.h"

namespace npu {
namespace {

constexpr size_t kSmallSegment = 2 << 20;
constexpr size_t kOwnSegment = 10 << 20;  // requests from here on get a segment of their own size
constexpr size_t kSegmentRounding = 2 << 20;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Used when the limit does not allow the preferred segment.
size_t SmallestSegment(size_t size, bool small) { return RoundUp(size, small ? 4096 : kSegmentRounding); }

}  // namespace

size_t CachingAllocator::Impl::PreferredSegment(const BlockPool& from, size_t size, bool small) const {
  if (!Caches(from)) return size;
  if (small) return kSmallSegment;
  return size < kOwnSegment ? settings.large_segment_size : RoundUp(size, kSegmentRounding);
}

Block* CachingAllocator::Impl::TakeFromNewSegment(BlockPool& from, size_t bytes, size_t size, bool small,
                                                  uint64_t owner) {
  if (settings.expandable_segments && Caches(from)) return TakeFromGrownSegment(from, bytes, size, small, owner);
  if (!Allowed(bytes)) return nullptr;
  ++stats.num_device_alloc;
  void* base = backend.AllocDevice(device, bytes);
  if (base == nullptr) return nullptr;
  try {
    Block* block = from.TakeFromNewSegment(base, bytes, size, small, owner);
    Trace(Action::kSegmentAlloc, base, bytes, owner, from.id());
    return block;
  } catch (...) {
    backend.FreeDevice(device, base, bytes);
    throw;
  }
}

Block* CachingAllocator::Impl::TakeFromGrownSegment(BlockPool& from, size_t bytes, size_t size, bool small,
                                                    uint64_t owner) {
  BackendExtensions& extensions = BackendExtensions::Of(backend);
  Segment* segment = from.FindExpandable(small, owner);
  if (segment == nullptr) {
    const size_t address_space = RoundUp(limit, kSegmentRounding);
    void* base = extensions.ReserveAddresses(device, address_space);
    if (base == nullptr) return nullptr;
    try {
      segment = from.AddExpandable(base, address_space, small, owner);
    } catch (...) {
      extensions.ReleaseAddresses(base, address_space);
      throw;
    }
  }
  const size_t growth = RoundUp(bytes - std::min(bytes, from.FreeTail(*segment, owner)), kSegmentRounding);
  if (growth > segment->address_space - segment->bytes || !Allowed(growth)) return nullptr;
  char* end = static_cast<char*>(segment->base) + segment->bytes;
  ++stats.num_device_alloc;
  if (!extensions.MapDevice(device, end, growth)) return nullptr;
  try {
    from.Grow(segment, growth, owner);
  } catch (...) {
    extensions.UnmapDevice(device, end, growth);
    throw;
  }
  Trace(Action::kSegmentMap, end, growth, owner, from.id());
  return from.Take(size, small, owner);
}

Block* CachingAllocator::Impl::TakeFromPlug(std::unique_lock<std::mutex>& lock, BlockPool& from, size_t size,
                                            bool small, Stream& stream) {
  lock.unlock();
  void* base = plug.alloc(size, device, stream);
  lock.lock();
  if (base == nullptr) return nullptr;
  NPU_CHECK(index.Around(base) == nullptr, "expected new memory from the pluggable allocator of NPU ", device, ", got ",
            base, ", which it has not been given back yet");
  try {
    Block* block = from.TakeFromNewSegment(base, size, size, small, stream.id());
    block->segment->plugged = true;
    Trace(Action::kSegmentAlloc, base, size, stream.id(), from.id());
    return block;
  } catch (...) {
    lock.unlock();
    plug.free(base, size, device, &stream);
    throw;
  }
}

void CachingAllocator::Impl::GiveBack(std::unique_ptr<Segment> segment, PoolId id) {
  if (segment->address_space > 0) {
    BackendExtensions::Of(backend).ReleaseAddresses(segment->base, segment->address_space);
    return;
  }
  Trace(Action::kSegmentFree, segment->base, segment->bytes, segment->stream, id);
  if (segment->plugged) {
    segment->to_user_next = to_user;
    to_user = segment.release();
    return;
  }
  ++stats.num_device_free;
  backend.FreeDevice(device, segment->base, segment->bytes);
}

void CachingAllocator::Impl::TrimTails(BlockPool& from) {
  for (const BlockPool::Trimmed& tail : from.TrimTails(kSegmentRounding)) {
    ++stats.num_device_free;
    BackendExtensions::Of(backend).UnmapDevice(device, tail.ptr, tail.bytes);
    Trace(Action::kSegmentUnmap, tail.ptr, tail.bytes, 0, from.id());
  }
  for (auto& segment : from.RemoveUnmappedSegments()) GiveBack(std::move(segment), from.id());
}

void CachingAllocator::Impl::ReleaseIdleSegments(BlockPool& from) {
  for (auto& segment : from.RemoveIdleSegments()) GiveBack(std::move(segment), from.id());
  TrimTails(from);
}

void CachingAllocator::Impl::ReturnReleasedPools() noexcept {
  released_pools = false;
  try {
    for (auto it = private_pools.begin(); it != private_pools.end();) {
      PrivatePool& p = it->second;
      const bool needed = p.use_count > 0 || p.pins > 0;
      if (!needed) {
        for (const uint64_t owner : p.blocks->Owners()) HoldFreeBlocks(*p.blocks, owner);
        ReleaseIdleSegments(*p.blocks);
      }
      it = !needed && p.blocks->empty() ? private_pools.erase(it) : std::next(it);
    }
  } catch (...) {
    released_pools = true;  // retried at the next allocation
  }
}

void CachingAllocator::Impl::CollectGarbage(std::unique_lock<std::mutex>& lock, size_t request) {
  const auto threshold = static_cast<size_t>(settings.garbage_collection_threshold * static_cast<double>(cap()));
  if (threshold == 0 || reserved() + request <= threshold) return;
  Reclaim(lock);
  if (reserved() + request <= threshold) return;
  for (auto& segment : pool.RemoveIdleSegments(reserved() + request - threshold)) GiveBack(std::move(segment), {});
}

Block* CachingAllocator::Impl::TakeMore(std::unique_lock<std::mutex>& lock, BlockPool& from, size_t size, bool small,
                                        Stream& stream) {
  // Keeps the pool while the lock is released, even if its last user releases the pool.
  struct Pin {
    Impl& a;
    std::unique_lock<std::mutex>& lock;
    PrivatePool* pool;
    ~Pin() {
      if (!lock.owns_lock()) lock.lock();  // a pluggable function threw
      if (pool == nullptr) return;
      --pool->pins;
      if (pool->use_count == 0) a.released_pools = true;
    }
  } pin{*this, lock, PrivateOf(from)};
  if (pin.pool != nullptr) ++pin.pool->pins;

  const uint64_t owner = stream.id();
  const auto take_free = [&] { return Caches(from) ? from.Take(size, small, owner) : nullptr; };
  Collect();
  if (Block* block = take_free()) return block;
  if (plugged()) return TakeFromPlug(lock, from, size, small, stream);
  const size_t segment = PreferredSegment(from, size, small);
  if (settings.garbage_collection_threshold > 0) CollectGarbage(lock, segment);
  if (Block* block = TakeFromNewSegment(from, segment, size, small, owner)) return block;

  ++stats.num_alloc_retries;
  Reclaim(lock);
  if (Block* block = take_free()) return block;
  ReleaseIdleSegments(pool);
  ReturnReleasedPools();
  if (Block* block = TakeFromNewSegment(from, segment, size, small, owner)) return block;
  return Caches(from) ? TakeFromNewSegment(from, SmallestSegment(size, small), size, small, owner) : nullptr;
}

}  // namespace npu

#include "ep/runtime/allocator.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "ep/runtime/allocator_impl.h"
#include "ep/runtime/error.h"

namespace npu {
namespace {

constexpr size_t kLargestSmall = 1 << 20;  // requests up to here come from small segments

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

}  // namespace

BlockPool& CachingAllocator::Impl::PoolOf(const Stream& stream) {
  for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope)
    if (scope->takes_part(stream)) return *private_pools.at(scope->id).blocks;
  return pool;
}

void CachingAllocator::Impl::FailOutOfMemory(size_t bytes, uint64_t stream) {
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

void CachingAllocator::Impl::CountLive(bool small, size_t size, size_t requested) {
  Count(stats.allocation, small, 1);
  Count(stats.allocated_bytes, small, static_cast<int64_t>(size));
  Count(stats.requested_bytes, small, static_cast<int64_t>(requested));
  if (size >= settings.max_split_size) stats.oversize_allocations.Add(1);
}

void CachingAllocator::Impl::DiscountLive(bool small, size_t size, size_t requested) {
  Discount(stats.allocation, small, 1);
  Discount(stats.allocated_bytes, small, static_cast<int64_t>(size));
  Discount(stats.requested_bytes, small, static_cast<int64_t>(requested));
  if (size >= settings.max_split_size) stats.oversize_allocations.Sub(1);
}

void* CachingAllocator::Impl::AllocateDirect(size_t bytes, Stream& stream) {
  void* ptr = direct.alloc(bytes, device, stream);  // a user's function: not under the lock
  std::lock_guard lock(mutex);
  if (ptr == nullptr) FailOutOfMemory(bytes, stream.id());
  direct_live[ptr] = {bytes, stream.id()};
  direct_streams.try_emplace(stream.id(), &stream);
  return ptr;
}

bool CachingAllocator::Impl::FreeDirect(void* ptr) {
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

void CachingAllocator::ReleaseStream(uint64_t stream) {
  Impl& a = *impl_;
  std::lock_guard reclaim(a.reclaim_mutex);
  std::lock_guard lock(a.mutex);
  a.ProcessEvents();
  a.streams.erase(stream);
  a.direct_streams.erase(stream);
  a.ForEachPool([&](BlockPool& pool) { pool.Disown(stream); });
  // The stream has drained, so there is nothing left to wait for on it.
  for (auto& [ptr, block] : a.live) std::erase_if(block->uses, [&](const StreamUse& u) { return u.id == stream; });
}

void CachingAllocator::ShareFreeBlocks(Stream& stream) {
  Impl& a = *impl_;
  std::lock_guard reclaim(a.reclaim_mutex);
  std::unique_lock lock(a.mutex);
  a.ProcessEvents();
  a.WaitForFreeBlocks(lock, stream.id());
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
  std::lock_guard reclaim(a.reclaim_mutex);
  std::unique_lock lock(a.mutex);
  const auto it = a.private_pools.find(id);
  NPU_CHECK(it != a.private_pools.end() && it->second.use_count > 0, "no private pool (", id.first, ", ", id.second,
            ") is in use on NPU ", a.device);
  if (--it->second.use_count > 0) return;
  // No allocation will be served from it any more: kept as a cache it would only grow with every graph that goes.
  if (!it->second.blocks->empty()) a.Reclaim(lock);
  a.ReleaseUnusedPools();
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

void CachingAllocator::UsePluggable(PluggableFunctions functions) {
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  NPU_CHECK(functions.alloc && functions.free, "expected a pluggable allocator with an alloc and a free function");
  NPU_CHECK(!a.used, "the allocator of NPU ", a.device,
            " was used already: change the allocator before anything is allocated on the device");
  a.direct = std::move(functions);
}

}  // namespace npu

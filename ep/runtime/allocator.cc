#include "ep/runtime/allocator.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <new>
#include <utility>

#include "ep/runtime/allocator_impl.h"
#include "ep/runtime/error.h"
#include "ep/runtime/log.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

constexpr size_t kLargestSmall = 1 << 20;  // requests up to here come from small segments
// Deferred frees that an allocation processes: more than one free adds, so that no backlog builds up.
constexpr size_t kStepsPerAllocation = 8;

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

void CachingAllocator::Impl::CountLive(const Block& block) {
  const bool small = block.segment->small;
  Count(stats.allocation, small, 1);
  Count(stats.active, small, 1);
  Count(stats.allocated_bytes, small, static_cast<int64_t>(block.size));
  Count(stats.active_bytes, small, static_cast<int64_t>(block.size));
  Count(stats.requested_bytes, small, static_cast<int64_t>(block.requested));
  if (block.size >= settings.max_split_size) stats.oversize_allocations.Add(1);
}

// The block counts as active until PutBack().
void CachingAllocator::Impl::DiscountLive(const Block& block) {
  const bool small = block.segment->small;
  Discount(stats.allocation, small, 1);
  Discount(stats.allocated_bytes, small, static_cast<int64_t>(block.size));
  Discount(stats.requested_bytes, small, static_cast<int64_t>(block.requested));
  if (block.size >= settings.max_split_size) stats.oversize_allocations.Sub(1);
}

void CachingAllocator::Impl::Trace(Action action, const void* address, size_t size, uint64_t stream, PoolId id,
                                   Frames frames) noexcept {
  if (!history.recording()) return;
  try {
    history.Add({action, reinterpret_cast<uint64_t>(address), size, stream, id, 0, std::move(frames)});
  } catch (const std::bad_alloc&) {  // the entry is dropped: a free must not fail because of it
  }
}

CachingAllocator::Impl::PrivatePool* CachingAllocator::Impl::PrivateOf(const BlockPool& p) {
  return &p == &pool ? nullptr : &private_pools.at(p.id());
}

StreamState& CachingAllocator::Impl::Known(Stream& stream) {
  if (const auto it = streams.find(stream.id()); it != streams.end()) return it->second;
  if (busy.capacity() <= streams.size()) busy.reserve(2 * streams.size() + 8);
  return streams.emplace(stream.id(), StreamState{stream.id(), stream.handle(), &stream.device()}).first->second;
}

Block* CachingAllocator::Impl::LiveAt(const void* ptr) const {
  Block* block = index.At(ptr);
  return block == nullptr || block->state != Block::State::kLive ? nullptr : block;
}

CachingAllocator::CachingAllocator(Backend& backend, int device, size_t limit, AllocatorSettings settings)
    : impl_(std::make_unique<Impl>(backend, device, limit, std::move(settings))) {}

CachingAllocator::~CachingAllocator() {
  if (InForkedChild()) return;
  Impl& a = *impl_;
  for (const StreamState* stream : a.busy) {
    try {
      a.backend.EventSynchronize(stream->last->event);
    } catch (const std::exception& e) {
      NPU_LOG(kError, "the allocator of NPU ", a.device, ": ", e.what());
    }
  }
  for (const StreamUse& use : a.uses) a.backend.DestroyEvent(use.event);
  a.ForEachPool([&](BlockPool& pool) {
    pool.ForEachSegment([&](const Segment& s) {
      if (s.plugged) return;  // left to the pluggable allocator, which owns it
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
  RefuseForkedChild();
  Impl& a = *impl_;
  Frames frames = a.history.FramesNowOrNull();
  Impl::Locked locked(a);
  if (a.environment_pending) {
    a.settings = AllocatorSettingsFromEnvironment();
    a.environment_pending = false;
  }
  a.used = true;
  // Checked before rounding, which would overflow near SIZE_MAX.
  if (bytes > SIZE_MAX / 2 || (bytes > a.cap() && !a.plugged())) a.FailOutOfMemory(bytes, stream.id());
  a.Collect(kStepsPerAllocation);
  BlockPool& pool = a.scopes.empty() ? a.pool : a.PoolOf(stream);
  const bool caches = a.Caches(pool);
  const size_t size = caches ? a.settings.RoundSize(bytes) : bytes;
  const bool small = size <= kLargestSmall;
  StreamState& state = a.Known(stream);
  const auto put_use = [&](StreamUse* use) { a.PutUse(use); };
  // A block that is not cached must wait for its own stream too, as for any other stream that uses it.
  std::unique_ptr<StreamUse, decltype(put_use)> own(caches ? nullptr : a.TakeUse(state), put_use);

  Block* block = caches ? pool.Take(size, small, stream.id()) : nullptr;
  if (block == nullptr) block = a.TakeMore(locked.lock(), pool, size, small, stream);
  if (block == nullptr) a.FailOutOfMemory(bytes, stream.id());
  if (own != nullptr) {
    own->block = block;
    block->uses = own.release();
  }
  block->requested = bytes;
  block->frames = frames;
  a.CountLive(*block);
  a.Trace(TraceEntry::Action::kAlloc, block->ptr, bytes, stream.id(), pool.id(), std::move(frames));
  return block->ptr;
}

bool CachingAllocator::Impl::Free(void* ptr) noexcept {
  Locked locked(*this);
  Block* block = LiveAt(ptr);
  if (block == nullptr) return false;
  PrivatePool* p = PrivateOf(*block->segment->pool);
  DiscountLive(*block);
  Trace(Action::kFreeRequested, ptr, block->requested, block->owner, block->segment->pool->id());
  block->state = Block::State::kPending;
  block->pending_uses = 1;  // held by this function until every use is recorded
  for (StreamUse* use = std::exchange(block->uses, nullptr); use != nullptr;) {
    StreamUse* next = use->next;
    ++block->pending_uses;
    if (p != nullptr && p->scopes > 0) {
      use->next = std::exchange(p->deferred, use);
    } else {
      Record(use);
    }
    use = next;
  }
  if (--block->pending_uses == 0) PutBack(block);
  return true;
}

void CachingAllocator::Free(void* ptr) noexcept {
  if (ptr == nullptr || InForkedChild() || impl_->Free(ptr)) return;
  try {
    NPU_LOG(kError, "free: expected a live allocation of NPU ", impl_->device, ", got ", ptr,
            ": it was freed before or was never allocated here");
  } catch (const std::exception&) {  // no memory for the message
  }
}

void CachingAllocator::CheckedFree(void* ptr) {
  if (ptr == nullptr || InForkedChild()) return;
  NPU_CHECK(impl_->Free(ptr), "free: expected a live allocation of NPU ", impl_->device, ", got ", ptr,
            ", an invalid device pointer: it was freed before or was never allocated here");
}

void CachingAllocator::RecordStream(void* ptr, Stream& stream) {
  if (ptr == nullptr) return;
  RefuseForkedChild();
  Impl& a = *impl_;
  if (a.plug.record_stream) a.plug.record_stream(ptr, stream);  // user code: called without the lock
  std::lock_guard lock(a.mutex);
  Block* block = a.LiveAt(ptr);
  NPU_CHECK(block != nullptr, "record_stream: expected a live allocation of NPU ", a.device, ", got ", ptr);
  if (block->owner == stream.id()) return;
  StreamState& state = a.Known(stream);
  for (const StreamUse* use = block->uses; use != nullptr; use = use->next)
    if (use->stream == &state) return;
  StreamUse* use = a.TakeUse(state);
  use->block = block;
  use->next = std::exchange(block->uses, use);
}

void CachingAllocator::EraseStream(void* ptr, Stream& stream) {
  if (InForkedChild()) return;
  Impl& a = *impl_;
  if (a.plug.erase_stream) a.plug.erase_stream(ptr, stream);
  std::lock_guard lock(a.mutex);
  Block* block = a.LiveAt(ptr);
  NPU_CHECK(block != nullptr, "erase_stream: expected a live allocation of NPU ", a.device, ", got ", ptr);
  if (block->owner == stream.id()) return;
  for (StreamUse** at = &block->uses; *at != nullptr; at = &(*at)->next) {
    if ((*at)->stream == nullptr || (*at)->stream->id != stream.id()) continue;
    return a.PutUse(std::exchange(*at, (*at)->next));
  }
}

void CachingAllocator::EmptyCache() {
  RefuseForkedChild();
  Impl::Locked locked(*impl_);
  impl_->Reclaim(locked.lock());
  impl_->ReleaseIdleSegments(impl_->pool);
  impl_->ReturnReleasedPools();
}

void CachingAllocator::TrimExpandableSegments() {
  RefuseForkedChild();
  Impl& a = *impl_;
  Impl::Locked locked(a);
  NPU_CHECK(a.settings.expandable_segments,
            "Unsupported config: there are no expandable segments to trim; please enable expandable_segments in "
            "PYTORCH_NPU_ALLOC_CONF");
  a.Reclaim(locked.lock());
  a.TrimTails(a.pool);
}

void CachingAllocator::ReleaseStream(uint64_t stream) {
  if (InForkedChild()) return;
  Impl& a = *impl_;
  Impl::Locked locked(a);
  const auto found = a.streams.find(stream);
  if (found == a.streams.end()) return;
  StreamState& gone = found->second;
  const auto forget = [&](StreamUse* list) {
    for (; list != nullptr; list = list->next)
      if (list->stream == &gone) list->stream = nullptr;
  };
  forget(a.unrecorded);
  for (const auto& [id, p] : a.private_pools) forget(p.deferred);
  for (const Block* block : a.index) forget(block->uses);
  std::erase(a.busy, &gone);
  while (gone.first != nullptr) a.Pass(std::exchange(gone.first, gone.first->next));
  a.streams.erase(found);
  a.DisownGoneStreams();
  a.Collect();
}

void CachingAllocator::Impl::DisownGoneStreams() {
  ForEachPool([&](BlockPool& from) {
    if (const PrivatePool* p = PrivateOf(from); p != nullptr && p->scopes > 0) return;
    from.Disown([&](uint64_t owner) { return streams.count(owner) == 0; });
  });
}

void CachingAllocator::ShareFreeBlocks(Stream& stream) {
  RefuseForkedChild();
  Impl& a = *impl_;
  Impl::Locked locked(a);
  const auto found = a.streams.find(stream.id());
  if (found == a.streams.end()) return;
  a.HoldFreeBlocks(stream.id());
  a.WaitForUses(locked.lock(), &found->second);
}

size_t CachingAllocator::limit() const { return impl_->limit; }

void CachingAllocator::ReadEnvironmentAtFirstUse() {
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  impl_->environment_pending = impl_->settings.caching;  // without caching, the settings stay as constructed
}

AllocatorSettings CachingAllocator::settings() const {
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  return impl_->settings;
}

void CachingAllocator::SetExpandableSegments(bool on) {
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  const AllocatorSettings& s = impl_->settings;
  NPU_CHECK(!on || (s.max_split_size == SIZE_MAX && s.garbage_collection_threshold == 0),
            "expandable_segments:True cannot be combined with max_split_size_mb or garbage_collection_threshold");
  impl_->settings.expandable_segments = on;
  impl_->environment_pending = false;
}

void CachingAllocator::SetMemoryFraction(double fraction) {
  NPU_CHECK(fraction >= 0 && fraction <= 1, "expected a memory fraction from 0 to 1, got ", fraction);
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  impl_->settings.memory_fraction = fraction;
  impl_->environment_pending = false;
}

void CachingAllocator::Impl::Retain(PoolId id) {
  NPU_CHECK(id != PoolId{}, "expected the id of a private pool, got (0, 0), which is the default pool's");
  auto it = private_pools.find(id);
  if (it == private_pools.end()) {
    auto blocks = std::make_unique<BlockPool>(id, settings, stats, index);
    it = private_pools.try_emplace(id).first;
    it->second.blocks = std::move(blocks);
  }
  ++it->second.use_count;
}

void CachingAllocator::Impl::Release(PoolId id) {
  const auto it = private_pools.find(id);
  NPU_CHECK(it != private_pools.end() && it->second.use_count > 0, "no private pool (", id.first, ", ", id.second,
            ") is in use on NPU ", device);
  // Nothing allocates from the pool any more: a cache of it would only grow with every destroyed graph.
  if (--it->second.use_count == 0) ReturnReleasedPools();
}

void CachingAllocator::RetainPool(PoolId id) {
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  impl_->Retain(id);
}

void CachingAllocator::ReleasePool(PoolId id) {
  if (InForkedChild()) return;
  Impl::Locked locked(*impl_);
  impl_->Release(id);
}

void CachingAllocator::BeginPool(PoolId id, std::function<bool(const Stream&)> takes_part) {
  RefuseForkedChild();
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  a.scopes.reserve(a.scopes.size() + 1);
  a.Retain(id);
  a.scopes.push_back({id, std::move(takes_part)});
  ++a.private_pools.at(id).scopes;
}

void CachingAllocator::EndPool(PoolId id) {
  if (InForkedChild()) return;
  Impl& a = *impl_;
  Impl::PoolScope ended;  // destroyed after the lock is released: its closure may own what frees memory
  Impl::Locked locked(a);
  const auto last = std::find_if(a.scopes.rbegin(), a.scopes.rend(), [&](const auto& s) { return s.id == id; });
  NPU_CHECK(last != a.scopes.rend(), "no allocation to the private pool (", id.first, ", ", id.second, ") was begun");
  ended = std::move(*last);
  a.scopes.erase(std::next(last).base());
  Impl::PrivatePool& p = a.private_pools.at(id);
  if (--p.scopes == 0) {
    for (StreamUse* use = std::exchange(p.deferred, nullptr); use != nullptr;) a.Record(std::exchange(use, use->next));
    a.DisownGoneStreams();
  }
  a.Release(id);
}

int CachingAllocator::PoolUseCount(PoolId id) const {
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  const auto it = impl_->private_pools.find(id);
  return it == impl_->private_pools.end() ? 0 : it->second.use_count;
}

void CachingAllocator::UsePluggable(PluggableFunctions functions) {
  RefuseForkedChild();
  Impl& a = *impl_;
  std::lock_guard lock(a.mutex);
  NPU_CHECK(functions.alloc && functions.free, "expected a pluggable allocator with an alloc and a free function");
  NPU_CHECK(!a.used, "the allocator of NPU ", a.device,
            " was used already: change the allocator before anything is allocated on the device");
  a.plug = std::move(functions);
}

}  // namespace npu

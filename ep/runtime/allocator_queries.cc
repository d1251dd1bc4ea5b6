// Queries of the caching allocator: counters, the snapshot, the history, blocks by address.
#include <algorithm>

#include "ep/runtime/allocator_impl.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

BlockInfo InfoOf(const Block& block) {
  const auto state = block.state == Block::State::kLive      ? BlockInfo::State::kAllocated
                     : block.state == Block::State::kPending ? BlockInfo::State::kPendingFree
                                                             : BlockInfo::State::kInactive;
  return {reinterpret_cast<uint64_t>(block.ptr), block.size, block.requested, state, block.frames};
}

template <class F>
void ForEachCounter(AllocatorStats& s, F&& f) {
  for (PoolCounters* counters : {&s.allocation, &s.segment, &s.active, &s.inactive_split, &s.allocated_bytes,
                                 &s.reserved_bytes, &s.active_bytes, &s.inactive_split_bytes, &s.requested_bytes})
    for (StatCounter* counter : {&counters->all, &counters->small_pool, &counters->large_pool}) f(*counter);
  f(s.oversize_allocations);
  f(s.oversize_segments);
}

}  // namespace

AllocatorStats CachingAllocator::Stats() const {
  RefuseForkedChild();
  Impl::Locked locked(*impl_);
  impl_->Collect();  // counts blocks whose uses have passed as free
  return impl_->stats;
}

void CachingAllocator::ResetPeakStats() {
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  ForEachCounter(impl_->stats, [](StatCounter& counter) { counter.peak = counter.current; });
}

void CachingAllocator::ResetAccumulatedStats() {
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  AllocatorStats& s = impl_->stats;
  ForEachCounter(s, [](StatCounter& counter) { counter.allocated = counter.freed = 0; });
  s.num_alloc_retries = s.num_ooms = s.num_sync_all_streams = 0;
  s.num_device_alloc = s.num_device_free = s.num_oom_rejections = 0;
}

std::vector<SegmentInfo> CachingAllocator::Snapshot() const {
  RefuseForkedChild();
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
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  impl_->history.Record(max_entries, frames_now);
}

std::vector<TraceEntry> CachingAllocator::History() const {
  RefuseForkedChild();
  std::lock_guard lock(impl_->mutex);
  return impl_->history.Entries();
}

size_t CachingAllocator::SizeOf(const void* ptr) const {
  if (InForkedChild()) return 0;
  std::lock_guard lock(impl_->mutex);
  const Block* block = impl_->LiveAt(ptr);
  return block == nullptr ? 0 : block->size;
}

void* CachingAllocator::LiveBlockAround(const void* address) const {
  BlockInfo block;
  if (!FindBlock(address, block) || block.state != BlockInfo::State::kAllocated) return nullptr;
  return reinterpret_cast<void*>(block.address);
}

bool CachingAllocator::FindBlock(const void* address, BlockInfo& out) const {
  if (InForkedChild()) return false;
  std::lock_guard lock(impl_->mutex);
  const Block* block = impl_->index.Around(address);
  if (block != nullptr) out = InfoOf(*block);
  return block != nullptr;
}

}  // namespace npu

// Freed blocks that a stream may still use: marks the uses in the streams' order and returns the blocks afterwards.
// Only WaitForUses waits; the path of a free neither throws nor allocates.
#include <exception>

#include "ep/runtime/allocator_impl.h"
#include "ep/runtime/blocking.h"
#include "ep/runtime/log.h"

namespace npu {

StreamUse* CachingAllocator::Impl::TakeUse(StreamState& stream) {
  StreamUse* use = spare_uses;
  if (use != nullptr) {
    spare_uses = use->next;
  } else {
    BackendEvent* event = backend.CreateEvent(/*timing=*/false);
    try {
      use = &uses.emplace_back();
    } catch (...) {
      backend.DestroyEvent(event);
      throw;
    }
    use->event = event;
  }
  use->stream = &stream;
  use->block = nullptr;
  use->next = nullptr;
  return use;
}

void CachingAllocator::Impl::PutUse(StreamUse* use) {
  // An event is not recorded again while a thread waits for it: the wait would then cover other work.
  StreamUse*& list = waiting > 0 ? resting : spare_uses;
  use->next = std::exchange(list, use);
}

void CachingAllocator::Impl::Record(StreamUse* use) noexcept {
  StreamState* stream = use->stream;
  bool passed = stream == nullptr;
  // A pluggable free function must be called as soon as the use has passed; for other blocks, polling is enough.
  const bool signal = plugged() && !Caches(*use->block->segment->pool);
  try {
    passed = passed || backend.StreamQuery(stream->handle);
    if (!passed && signal) {
      backend.LaunchAlways(stream->handle, "free", [this, use](const Status&) {
        Locked locked(*this);
        Pass(use);
      });
    } else if (!passed) {
      backend.EventRecord(use->event, stream->handle);
    }
  } catch (...) {
    use->next = std::exchange(unrecorded, use);
    return;
  }
  if (passed) {
    Pass(use);
  } else if (!signal) {
    Append(use);
  }
}

void CachingAllocator::Impl::Append(StreamUse* use) {
  StreamState& stream = *use->stream;
  use->next = nullptr;
  if (stream.first == nullptr) {
    busy.push_back(&stream);
    stream.first = use;
  } else {
    stream.last->next = use;
  }
  stream.last = use;
}

void CachingAllocator::Impl::Pass(StreamUse* use) {
  Block* block = std::exchange(use->block, nullptr);
  PutUse(use);
  while (block != nullptr) {
    Block* next = std::exchange(block->held_next, nullptr);
    if (--block->pending_uses == 0) PutBack(block);
    block = next;
  }
}

void CachingAllocator::Impl::PutBack(Block* block) {
  BlockPool& from = *block->segment->pool;
  if (const PrivatePool* p = PrivateOf(from); p != nullptr && p->use_count == 0) released_pools = true;
  if (block->state == Block::State::kHeld) return from.PutIdle(block);
  Discount(stats.active, block->segment->small, 1);
  Discount(stats.active_bytes, block->segment->small, static_cast<int64_t>(block->size));
  Trace(Action::kFreeCompleted, block->ptr, block->requested, block->owner, from.id());
  if (Caches(from)) {
    from.Put(block);
  } else {
    GiveBack(from.RemoveSegmentOf(block), from.id());
  }
}

void CachingAllocator::Impl::Collect(size_t steps) noexcept {
  StreamUse* again = std::exchange(unrecorded, nullptr);
  while (again != nullptr && unrecorded == nullptr && steps > 0) {  // stop at the first that fails again
    --steps;
    Record(std::exchange(again, again->next));
  }
  if (again != nullptr) (unrecorded == nullptr ? unrecorded : unrecorded->next) = again;

  for (size_t misses = 0; steps > 0 && misses < busy.size(); --steps) {
    if (turn >= busy.size()) turn = 0;
    StreamState& stream = *busy[turn];
    if (!backend.EventQuery(stream.first->event)) {
      ++turn;
      ++misses;
      continue;
    }
    StreamUse* use = std::exchange(stream.first, stream.first->next);
    if (stream.first == nullptr) {
      busy[turn] = busy.back();
      busy.pop_back();
    }
    Pass(use);
  }
  if (released_pools) ReturnReleasedPools();
}

void CachingAllocator::Impl::HoldFreeBlocks(BlockPool& from, uint64_t owner) {
  const auto found = streams.find(owner);
  if (found == streams.end() || backend.StreamQuery(found->second.handle)) return from.PutIdle(from.Hold(owner));
  StreamUse* use = TakeUse(found->second);
  try {
    backend.EventRecord(use->event, found->second.handle);
  } catch (...) {
    PutUse(use);
    throw;
  }
  use->block = from.Hold(owner);
  for (Block* block = use->block; block != nullptr; block = block->held_next) block->pending_uses = 1;
  Append(use);
}

void CachingAllocator::Impl::HoldFreeBlocks(uint64_t owner) {
  ForEachPool([&](BlockPool& from) {
    // During a capture the participating streams have queued nothing; their order is that of the replays.
    if (const PrivatePool* p = PrivateOf(from); p != nullptr && p->scopes > 0) return;
    for (const uint64_t one : from.Owners())
      if (owner == BlockPool::kAnyStream || one == owner) HoldFreeBlocks(from, one);
  });
}

void CachingAllocator::Impl::WaitForUses(std::unique_lock<std::mutex>& lock, const StreamState* only) {
  std::vector<BackendEvent*> last;
  for (const StreamState* stream : busy)
    if (only == nullptr || stream == only) last.push_back(stream->last->event);
  if (last.empty()) return Collect();
  ++waiting;
  lock.unlock();
  std::exception_ptr failed;
  try {
    const MayBlock scope;
    // Events, not StreamSynchronize: a failure of the stream concerns its owner, not this wait.
    for (BackendEvent* event : last) backend.EventSynchronize(event);
  } catch (...) {
    failed = std::current_exception();
  }
  lock.lock();
  if (--waiting == 0)
    while (resting != nullptr) PutUse(std::exchange(resting, resting->next));
  if (failed != nullptr) std::rethrow_exception(failed);
  Collect();
}

void CachingAllocator::Impl::Reclaim(std::unique_lock<std::mutex>& lock) {
  ++stats.num_sync_all_streams;
  WaitForUses(lock);  // blocks returned by this belong to their streams again, which are waited for next
  HoldFreeBlocks(BlockPool::kAnyStream);
  WaitForUses(lock);
}

void CachingAllocator::Impl::FreeToUser(std::unique_lock<std::mutex>& lock) noexcept {
  while (to_user != nullptr) {
    const std::unique_ptr<Segment> segment(std::exchange(to_user, to_user->to_user_next));
    const auto owner = streams.find(segment->stream);
    Device* of_stream = owner == streams.end() ? nullptr : owner->second.device;
    lock.unlock();
    try {
      Stream* stream = of_stream == nullptr ? nullptr : of_stream->FindStream(segment->stream);
      plug.free(segment->base, segment->bytes, device, stream);
    } catch (const std::exception& e) {
      NPU_LOG(kError, "the free function of the pluggable allocator of NPU ", device, " failed: ", e.what());
    } catch (...) {
      NPU_LOG(kError, "the free function of the pluggable allocator of NPU ", device, " failed");
    }
    lock.lock();
  }
}

}  // namespace npu

#include "ep/runtime/pinned_memory.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "ep/runtime/blocking.h"
#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph_recording.h"
#include "ep/runtime/log.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

class Stopwatch {
 public:
  int64_t us() const {
    return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

size_t ClassOf(size_t bytes) { return static_cast<size_t>(std::bit_width(bytes | 1) - 1); }

}  // namespace

struct PinnedMemory::Use {
  uint64_t stream;
  BackendEvent* event;
  uint64_t number;
};

struct PinnedMemory::Block {
  char* address = nullptr;
  size_t bytes = 0;
  uint64_t freed = 0;     // sequence number of its free
  std::vector<Use> uses;  // by work in flight
  uint64_t records = 0;   // number of uses so far
};

void DurationCounter::Add(int64_t us) {
  total += us;
  longest = std::max(longest, us);
  shortest = count == 0 ? us : std::min(shortest, us);
  ++count;
}

PinnedMemory& PinnedMemory::Instance() {
  static PinnedMemory& instance = *new PinnedMemory;
  return instance;
}

PinnedMemory::PinnedMemory(Backend* backend, size_t cache_limit) : given_backend_(backend), cache_limit_(cache_limit) {}

PinnedMemory::~PinnedMemory() {
  live_.clear();
  for (const auto& [stream, blocks] : waiting_)
    for (Block* block : blocks)
      for (const Use& use : block->uses) backend().EventSynchronize(use.event);
  EmptyCache();
}

// Called only for allocated memory, so that an address query does not start a runtime.
Backend& PinnedMemory::backend() const {
  return given_backend_ != nullptr ? *given_backend_ : Runtime::Instance().backend();
}

void* PinnedMemory::Allocate(size_t bytes) {
  if (InForkedChild())
    Fail(ErrorCode::kDeviceError,
         "[pinned_memory] expected the process that started the device, got a fork of it: start processes with the "
         "method 'spawn', or allocate before the device is used");
  if (bytes == 0) return nullptr;
  // A block that is too large to be cached is not rounded up.
  const size_t size = bytes > cache_limit_ ? bytes : std::bit_ceil(bytes);
  Gone gone;
  Block* block = nullptr;
  {
    std::lock_guard lock(mutex_);
    SettleWaiting(gone);
    block = TakeCached(size);
  }
  GiveBack(gone);
  if (block == nullptr) block = NewBlock(size);
  std::shared_ptr<Block> held(block, [this](Block* unheld) { Release(unheld); });
  std::lock_guard lock(mutex_);
  live_.emplace(reinterpret_cast<uintptr_t>(block->address), std::move(held));
  return block->address;
}

PinnedMemory::Block* PinnedMemory::NewBlock(size_t bytes) {
  auto block = std::make_unique<Block>();
  const Stopwatch watch;
  void* address = backend().AllocPinned(bytes);
  if (address == nullptr) {
    EmptyCache();
    address = backend().AllocPinned(bytes);
  }
  if (address == nullptr)
    Fail(ErrorCode::kOutOfMemory, "[pinned_memory] the system has no memory for ", bytes,
         " bytes: free pinned tensors, or ask for less");
  block->address = static_cast<char*>(address);
  block->bytes = bytes;
  std::lock_guard lock(mutex_);
  stats_.blocks.Add(1);
  stats_.bytes.Add(static_cast<int64_t>(bytes));
  stats_.alloc_time.Add(watch.us());
  CountActive(bytes);
  return block.release();
}

void PinnedMemory::CountActive(size_t bytes) {
  stats_.active_blocks.Add(1);
  stats_.active_bytes.Add(static_cast<int64_t>(bytes));
}

void PinnedMemory::Free(void* address) noexcept {
  if (address == nullptr || InForkedChild()) return;
  std::shared_ptr<Block> block;  // released without the lock, which Release takes
  std::lock_guard lock(mutex_);
  const auto found = live_.find(reinterpret_cast<uintptr_t>(address));
  if (found == live_.end()) return;
  block = std::move(found->second);
  live_.erase(found);
}

bool PinnedMemory::Contains(const void* address) { return FindLive(address) != nullptr; }

std::shared_ptr<PinnedMemory::Block> PinnedMemory::FindLive(const void* address) {
  if (InForkedChild()) return nullptr;  // the thread that may hold the lock exists only in the parent
  const auto at = reinterpret_cast<uintptr_t>(address);
  std::lock_guard lock(mutex_);
  auto next = live_.upper_bound(at);
  if (next == live_.begin()) return nullptr;
  const auto& [begin, block] = *--next;
  return at < begin + block->bytes ? block : nullptr;
}

bool PinnedMemory::RecordUse(const void* address, Stream& stream) {
  const std::shared_ptr<Block> block = FindLive(address);
  if (block == nullptr) return false;
  if (Recording::Any() && Recording::Keep(stream, block)) return true;
  // Uses the backend's events: Event and Stream would check whether a capture permits it.
  Backend& b = stream.device().backend();
  BackendEvent* event = nullptr;
  try {
    uint64_t before = 0;
    {
      std::lock_guard lock(mutex_);
      before = block->records;
    }
    event = b.CreateEvent(/*timing=*/false);
    b.EventRecord(event, stream.handle());  // may wait for space in the queue
    AddUse(*block, b, {stream.id(), event, 0}, before);
  } catch (const std::exception& e) {
    // Without an event the end of the stream's use would remain unknown, so it is awaited here.
    NPU_LOG(kWarning, "[pinned_memory] waits for a stream, whose use of it could not be recorded: ", e.what());
    if (event != nullptr) b.DestroyEvent(event);
    const MayBlock scope;
    b.StreamSynchronize(stream.handle());
  }
  return true;
}

// Keeps the last event of each stream, and others only if threads record concurrently, when their order is unknown.
void PinnedMemory::AddUse(Block& block, Backend& backend, Use use, uint64_t before) {
  std::lock_guard lock(mutex_);
  block.uses.push_back(use);  // before any is erased: this may throw
  block.uses.back().number = ++block.records;
  std::erase_if(block.uses, [&](const Use& other) {
    const bool replaced = other.stream == use.stream && other.number <= before;
    if (!replaced && (other.stream == use.stream || !backend.EventQuery(other.event))) return false;
    backend.DestroyEvent(other.event);
    return true;
  });
}

void PinnedMemory::Release(Block* block) noexcept {
  if (InForkedChild()) return;
  try {
    Gone gone;
    {
      std::lock_guard lock(mutex_);
      SettleWaiting(gone);
      Settle(block, gone);
    }
    GiveBack(gone);
  } catch (const std::exception& e) {
    NPU_LOG(kError, "[pinned_memory] lost a block of ", block->bytes, " bytes: ", e.what());
  }
}

void PinnedMemory::Settle(Block* block, Gone& gone) {
  while (!block->uses.empty()) {
    const Use& use = block->uses.back();
    if (!backend().EventQuery(use.event)) {
      waiting_[use.stream].push_back(block);
      return;
    }
    backend().DestroyEvent(use.event);
    block->uses.pop_back();
  }
  stats_.active_blocks.Sub(1);
  stats_.active_bytes.Sub(static_cast<int64_t>(block->bytes));
  Cache(block, gone);
}

// Checks only the first block of each stream: those behind it in the stream's order have not passed either.
void PinnedMemory::SettleWaiting(Gone& gone) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    auto& blocks = it->second;
    while (!blocks.empty() && backend().EventQuery(blocks.front()->uses.back().event)) {
      Block* block = blocks.front();
      blocks.pop_front();
      Settle(block, gone);
    }
    it = blocks.empty() ? waiting_.erase(it) : std::next(it);
  }
}

void PinnedMemory::Cache(Block* block, Gone& gone) {
  if (block->bytes > cache_limit_) {
    gone.push_back(block);
    return;
  }
  block->freed = ++frees_;
  cached_[ClassOf(block->bytes)].push_back(block);
  cached_bytes_ += block->bytes;
  while (cached_bytes_ > cache_limit_) {
    std::deque<Block*>* oldest = nullptr;
    for (auto& blocks : cached_)
      if (!blocks.empty() && (oldest == nullptr || blocks.front()->freed < oldest->front()->freed)) oldest = &blocks;
    Uncache(*oldest, gone);
  }
}

PinnedMemory::Block* PinnedMemory::TakeCached(size_t bytes) {
  auto& blocks = cached_[ClassOf(bytes)];
  if (bytes > cache_limit_ || blocks.empty()) return nullptr;
  Block* block = blocks.back();
  blocks.pop_back();
  cached_bytes_ -= block->bytes;
  CountActive(bytes);
  return block;
}

void PinnedMemory::Uncache(std::deque<Block*>& blocks, Gone& gone) {
  gone.push_back(blocks.front());
  cached_bytes_ -= blocks.front()->bytes;
  blocks.pop_front();
}

void PinnedMemory::GiveBack(const Gone& gone) {
  for (Block* block : gone) {
    const Stopwatch watch;
    backend().FreePinned(block->address);
    {
      std::lock_guard lock(mutex_);
      stats_.blocks.Sub(1);
      stats_.bytes.Sub(static_cast<int64_t>(block->bytes));
      stats_.free_time.Add(watch.us());
    }
    delete block;
  }
}

void PinnedMemory::EmptyCache() {
  if (InForkedChild()) return;
  Gone gone;
  {
    std::lock_guard lock(mutex_);
    SettleWaiting(gone);
    for (auto& blocks : cached_)
      while (!blocks.empty()) Uncache(blocks, gone);
  }
  GiveBack(gone);
}

PinnedMemoryStats PinnedMemory::Stats() {
  if (InForkedChild()) return {};
  Gone gone;
  {
    std::lock_guard lock(mutex_);
    SettleWaiting(gone);
  }
  GiveBack(gone);
  std::lock_guard lock(mutex_);
  return stats_;
}

void PinnedMemory::ResetPeakStats() {
  if (InForkedChild()) return;
  std::lock_guard lock(mutex_);
  for (StatCounter* counter : {&stats_.blocks, &stats_.bytes, &stats_.active_blocks, &stats_.active_bytes})
    counter->peak = counter->current;
  for (DurationCounter* time : {&stats_.alloc_time, &stats_.free_time}) time->longest = time->shortest = 0;
}

void PinnedMemory::ResetAccumulatedStats() {
  if (InForkedChild()) return;
  std::lock_guard lock(mutex_);
  for (StatCounter* counter : {&stats_.blocks, &stats_.bytes, &stats_.active_blocks, &stats_.active_bytes})
    counter->allocated = counter->freed = 0;
  for (DurationCounter* time : {&stats_.alloc_time, &stats_.free_time}) time->total = time->count = 0;
}

}  // namespace npu

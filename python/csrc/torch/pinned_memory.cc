#include "python/csrc/torch/pinned_memory.h"

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"

namespace npu::aten {
namespace {

struct Block {
  size_t bytes = 0;
  bool freed = false;
  std::vector<std::unique_ptr<Event>> uses;

  bool idle() const {
    for (const auto& use : uses)
      if (!use->Query()) return false;
    return true;
  }
};

class PinnedPool {
 public:
  void* Allocate(size_t bytes) {
    std::lock_guard lock(mutex_);
    ReleaseIdle();
    void* address = backend().AllocPinned(bytes);
    if (address == nullptr) Fail(ErrorCode::kOutOfMemory, "no pinned memory for ", bytes, " bytes");
    blocks_[reinterpret_cast<uintptr_t>(address)].bytes = bytes;
    stats_.blocks.Add(1);
    stats_.active_blocks.Add(1);
    stats_.bytes.Add(static_cast<int64_t>(bytes));
    stats_.active_bytes.Add(static_cast<int64_t>(bytes));
    return address;
  }
  void Free(void* address) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(address));
    if (found == blocks_.end()) return;
    found->second.freed = true;
    stats_.active_blocks.Sub(1);
    stats_.active_bytes.Sub(static_cast<int64_t>(found->second.bytes));
    waiting_.push_back(found->first);
    ReleaseIdle();
  }
  PinnedMemoryStats Stats() {
    std::lock_guard lock(mutex_);
    ReleaseIdle();
    return stats_;
  }
  void ResetStats(bool peaks) {
    std::lock_guard lock(mutex_);
    for (StatCounter* counter : {&stats_.blocks, &stats_.bytes, &stats_.active_blocks, &stats_.active_bytes}) {
      if (peaks) {
        counter->peak = counter->current;
      } else {
        counter->allocated = counter->freed = 0;
      }
    }
  }
  bool Contains(const void* address) {
    std::lock_guard lock(mutex_);
    return Find(address) != nullptr;
  }
  void RecordUse(const void* address, Stream& stream) {
    auto event = std::make_unique<Event>(backend());
    event->Record(stream);
    std::lock_guard lock(mutex_);
    Block* block = Find(address);
    if (block == nullptr) return;
    std::erase_if(block->uses, [](const auto& use) { return use->Query(); });
    block->uses.push_back(std::move(event));
  }

 private:
  static Backend& backend() { return Runtime::Instance().backend(); }

  Block* Find(const void* address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    auto next = blocks_.upper_bound(at);
    if (next == blocks_.begin()) return nullptr;
    auto& [begin, block] = *--next;
    return at < begin + block.bytes && !block.freed ? &block : nullptr;
  }
  void ReleaseIdle() {
    std::erase_if(waiting_, [this](uintptr_t address) {
      const auto found = blocks_.find(address);
      if (!found->second.idle()) return false;
      stats_.blocks.Sub(1);
      stats_.bytes.Sub(static_cast<int64_t>(found->second.bytes));
      blocks_.erase(found);
      backend().FreePinned(reinterpret_cast<void*>(address));
      return true;
    });
  }

  std::mutex mutex_;
  PinnedMemoryStats stats_;
  std::map<uintptr_t, Block> blocks_;
  std::vector<uintptr_t> waiting_;  // freed, perhaps still in use
};

// Never destroyed: tensors may be freed after static destructors ran.
PinnedPool& Pool() {
  static PinnedPool& pool = *new PinnedPool;
  return pool;
}

}  // namespace

void* AllocatePinned(size_t bytes) { return Pool().Allocate(bytes); }
void FreePinned(void* address) { Pool().Free(address); }
PinnedMemoryStats GetPinnedMemoryStats() { return Pool().Stats(); }
void ResetPinnedMemoryStats(bool peaks) { Pool().ResetStats(peaks); }
bool IsPinned(const void* address) { return Pool().Contains(address); }
void RecordPinnedUse(const void* address, Stream& stream) { Pool().RecordUse(address, stream); }

}  // namespace npu::aten

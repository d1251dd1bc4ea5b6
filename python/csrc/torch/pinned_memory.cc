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
    return address;
  }
  void Free(void* address) {
    std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(address));
    if (found == blocks_.end()) return;
    found->second.freed = true;
    waiting_.push_back(found->first);
    ReleaseIdle();
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
      blocks_.erase(found);
      backend().FreePinned(reinterpret_cast<void*>(address));
      return true;
    });
  }

  std::mutex mutex_;
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
bool IsPinned(const void* address) { return Pool().Contains(address); }
void RecordPinnedUse(const void* address, Stream& stream) { Pool().RecordUse(address, stream); }

}  // namespace npu::aten

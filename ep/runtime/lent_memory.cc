#include "ep/runtime/lent_memory.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

struct Offered {
  int device = 0;
  void* address = nullptr;
  size_t bytes = 0;
  std::shared_ptr<void> owner;
};
thread_local Offered offered;

struct Lent {
  std::atomic<int64_t> count{0};
  std::mutex mutex;
  std::unordered_multimap<void*, std::shared_ptr<void>> owners;  // an address may be lent several times
};

Lent& GetLent() {
  static Lent& lent = *new Lent;
  return lent;
}

}  // namespace

void LentMemory::Offer(int device, void* address, size_t bytes, std::shared_ptr<void> owner) {
  offered = {device, address, bytes, std::move(owner)};
}

bool LentMemory::Withdraw() { return std::exchange(offered, {}).address != nullptr; }

void* LentMemory::Take(int device, size_t bytes) {
  if (offered.address == nullptr || offered.device != device || bytes > offered.bytes) return nullptr;
  Offered taken = std::exchange(offered, {});
  Lent& lent = GetLent();
  std::lock_guard lock(lent.mutex);
  lent.owners.emplace(taken.address, std::move(taken.owner));
  lent.count.fetch_add(1, std::memory_order_relaxed);
  return taken.address;
}

std::shared_ptr<void> LentMemory::Return(void* address) {
  if (InForkedChild()) return nullptr;  // frees do nothing there, and the lock may be held forever
  Lent& lent = GetLent();
  if (lent.count.load(std::memory_order_relaxed) == 0) return nullptr;
  std::lock_guard lock(lent.mutex);
  const auto found = lent.owners.find(address);
  if (found == lent.owners.end()) return nullptr;
  std::shared_ptr<void> owner = std::move(found->second);
  lent.owners.erase(found);
  lent.count.fetch_sub(1, std::memory_order_relaxed);
  return owner;
}

}  // namespace npu

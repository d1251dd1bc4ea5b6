#include "ep/kernels/gemm/shared_panels.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "ep/runtime/allocator.h"
#include "ep/runtime/worker_thread.h"

namespace npu::gemm {
namespace {

// Memory, size and a hash of some of the bytes: few pairs of different weights have one key, so that few are compared.
using Key = std::tuple<const CachingAllocator*, size_t, size_t>;

Key KeyOf(const CachingAllocator& allocator, const void* panels, size_t bytes) {
  std::array<uint64_t, 64> sample{};
  const size_t count = std::min(bytes, sizeof(uint64_t));
  for (size_t i = 0; i < sample.size(); ++i)
    std::memcpy(&sample[i], static_cast<const char*>(panels) + (bytes - count) / (sample.size() - 1) * i, count);
  const std::string_view text(reinterpret_cast<const char*>(sample.data()), sizeof(sample));
  return {&allocator, bytes, std::hash<std::string_view>{}(text)};
}

class PanelStore {
 public:
  // Never destroyed: kernels may outlive static objects.
  static PanelStore& Instance() {
    static auto* store = new PanelStore;
    return *store;
  }

  void* Share(const CachingAllocator& allocator, void* panels, size_t bytes) {
    const Key key = KeyOf(allocator, panels, bytes);
    const std::lock_guard lock(mutex_);
    const auto [begin, end] = by_key_.equal_range(key);
    const auto same =
        std::find_if(begin, end, [&](const auto& stored) { return std::memcmp(stored.second, panels, bytes) == 0; });
    if (same != end) {
      ++users_.at(same->second).count;
      return same->second;
    }
    users_.emplace(panels, Users{1, by_key_.emplace(key, panels)});
    return panels;
  }

  // True: nobody reads the memory any more.
  bool Release(void* panels) {
    const std::lock_guard lock(mutex_);
    const auto found = users_.find(panels);
    if (found == users_.end()) return true;
    if (--found->second.count > 0) return false;
    by_key_.erase(found->second.stored);
    users_.erase(found);
    return true;
  }

 private:
  using Stored = std::multimap<Key, void*>;
  struct Users {
    size_t count;
    Stored::iterator stored;
  };
  std::mutex mutex_;
  Stored by_key_;
  std::unordered_map<void*, Users> users_;
};

}  // namespace

void* SharePanels(CachingAllocator& allocator, void* panels, size_t bytes) {
  void* shared = PanelStore::Instance().Share(allocator, panels, bytes);
  if (shared != panels) allocator.Free(panels);
  return shared;
}

void ReleasePanels(CachingAllocator& allocator, void* panels) noexcept {
  // A forked child has none of the threads that may hold the lock; its allocator frees nothing either.
  if (!InForkedChild() && PanelStore::Instance().Release(panels)) allocator.Free(panels);
}

}  // namespace npu::gemm

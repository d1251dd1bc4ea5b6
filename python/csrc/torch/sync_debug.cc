#include "python/csrc/torch/sync_debug.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace npu::aten {
namespace {

std::atomic<int> sync_debug_mode{0};

}  // namespace

void SetSyncDebugMode(int mode) { sync_debug_mode.store(mode); }

void BeforeImplicitSync() {
  const int mode = sync_debug_mode.load(std::memory_order_relaxed);
  if (mode == 0) return;
  TORCH_CHECK(mode != 2, "called a synchronizing NPU operation while set_sync_debug_mode is 'error'");
  TORCH_WARN("called a synchronizing NPU operation");
}

}  // namespace npu::aten

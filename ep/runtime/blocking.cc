#include "ep/runtime/blocking.h"

#include <atomic>

namespace npu {
namespace {

std::atomic<void* (*)()> release_hook{nullptr};
std::atomic<void (*)(void*)> restore_hook{nullptr};

}  // namespace

void MayBlock::SetHooks(void* (*release)(), void (*restore)(void*)) {
  restore_hook.store(restore);
  release_hook.store(release);
}

MayBlock::MayBlock() : released_(nullptr) {
  if (const auto release = release_hook.load(std::memory_order_acquire)) released_ = release();
}

MayBlock::~MayBlock() {
  if (released_ != nullptr) restore_hook.load()(released_);
}

}  // namespace npu

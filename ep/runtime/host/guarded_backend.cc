#include "ep/runtime/host/guarded_backend.h"

#include <utility>

namespace npu {

void* GuardedBackend::AllocDevice(int device, size_t bytes) {
  void* ptr = HostBackend::AllocDevice(device, bytes);
  if (ptr == nullptr || pages_.Add(ptr, bytes)) return ptr;
  HostBackend::FreeDevice(device, ptr, bytes);
  return nullptr;
}

void GuardedBackend::FreeDevice(int device, void* ptr, size_t bytes) {
  pages_.Remove(ptr, bytes);
  HostBackend::FreeDevice(device, ptr, bytes);
}

bool GuardedBackend::MapDevice(int device, void* ptr, size_t bytes) {
  if (!HostBackend::MapDevice(device, ptr, bytes)) return false;
  if (pages_.Add(ptr, bytes)) return true;
  HostBackend::UnmapDevice(device, ptr, bytes);
  return false;
}

void GuardedBackend::UnmapDevice(int device, void* ptr, size_t bytes) {
  pages_.Remove(ptr, bytes);
  HostBackend::UnmapDevice(device, ptr, bytes);
}

void GuardedBackend::Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes) {
  auto work = [this, task = std::move(task)]() mutable {
    const DevicePages::Access access(pages_);
    task();
  };
  HostBackend::Launch(stream, op, Task(std::move(work)), held_bytes);
}

void GuardedBackend::RunCaptured(Task& task) {
  const DevicePages::Access access(pages_);
  HostBackend::RunCaptured(task);
}

void GuardedBackend::CopyInTask(void* dst, const void* src, size_t bytes, CopyKind kind) {
  const DevicePages::Access access(pages_);
  HostBackend::CopyInTask(dst, src, bytes, kind);
}

void GuardedBackend::FillInTask(void* dst, int value, size_t bytes) {
  const DevicePages::Access access(pages_);
  HostBackend::FillInTask(dst, value, bytes);
}

}  // namespace npu

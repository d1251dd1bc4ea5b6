// The host backend with device memory that only launches and copies may touch: ORT_NPU_GUARD_MEMORY=1.
#pragma once

#include "ep/runtime/host/device_pages.h"
#include "ep/runtime/host/host_backend.h"

namespace npu {

class GuardedBackend : public HostBackend {
 public:
  explicit GuardedBackend(const HostOptions& options) : HostBackend(options, /*whole_pages=*/true) {}

  void* AllocDevice(int device, size_t bytes) override;
  void FreeDevice(int device, void* ptr, size_t bytes) override;
  bool MapDevice(int device, void* ptr, size_t bytes) override;
  void UnmapDevice(int device, void* ptr, size_t bytes) override;

  void Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes) override;
  void RunCaptured(Task& task) override;
  void CopyInTask(void* dst, const void* src, size_t bytes, CopyKind kind) override;
  void FillInTask(void* dst, int value, size_t bytes) override;

 private:
  DevicePages pages_;
};

}  // namespace npu

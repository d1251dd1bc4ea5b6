// The embedded default backend: this machine's CPU behind the device interface.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ep/runtime/backend.h"
#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/host/host_memory.h"

namespace npu {

struct HostOptions {
  int device_count = 1;
  size_t memory_limit = 0;  // bytes per device
  std::string device_name;
};

// The options from ORT_NPU_* and this machine; devices are called `default_name` unless the environment names them.
HostOptions HostOptionsFromEnvironment(const std::string& default_name);

// A guarded backend if ORT_NPU_GUARD_MEMORY is set.
std::unique_ptr<Backend> MakeHostBackend(const HostOptions& options);

// Streams are worker threads. All work on device memory goes through Launch, RunCaptured, CopyInTask and FillInTask: a
// derived backend overrides these to change what the work does, and keeps its order.
class HostBackend : public Backend, public BackendExtensions {
 public:
  // With `whole_pages`, device memory is, for a derived backend that protects it.
  explicit HostBackend(const HostOptions& options, bool whole_pages = false);

  const char* name() const override { return "host"; }
  int DeviceCount() const override { return options_.device_count; }
  DeviceProperties Properties(int device) const override;
  bool KernelsReachHostMemory() const override { return true; }

  void* AllocDevice(int device, size_t bytes) override { return memory_.AllocDevice(device, bytes); }
  void FreeDevice(int device, void* ptr, size_t bytes) override { memory_.FreeDevice(device, ptr, bytes); }
  void* AllocPinned(size_t bytes) override { return HostMemory::AllocPinned(bytes); }
  void FreePinned(void* ptr) override { HostMemory::FreePinned(ptr); }

  BackendStream* CreateStream(int device, int priority) override;
  void DestroyStream(BackendStream* stream) override;
  void Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes) override;
  void LaunchHost(BackendStream* stream, const char* op, Task task) override;
  void RunCaptured(Task& task) override { task(); }
  void LaunchAlways(BackendStream* stream, const char* op, std::function<void(const Status&)> task) override;
  void Copy(BackendStream* stream, void* dst, const void* src, size_t bytes, CopyKind kind) override;
  void CopyNow(int device, void* dst, const void* src, size_t bytes, CopyKind kind) override;
  void Memset(BackendStream* stream, void* dst, int value, size_t bytes) override;
  bool StreamQuery(BackendStream* stream) override;
  Status StreamSynchronize(BackendStream* stream) override;
  Status StreamStatus(BackendStream* stream) override;
  void StreamResume(BackendStream* stream, Status failure) override;

  BackendEvent* CreateEvent(bool timing) override;
  void DestroyEvent(BackendEvent* event) override;
  void EventRecord(BackendEvent* event, BackendStream* stream) override;
  void StreamWaitEvent(BackendStream* stream, BackendEvent* event) override;
  bool EventQuery(BackendEvent* event) override;
  Status EventSynchronize(BackendEvent* event) override;
  Status EventStatus(BackendEvent* event) override;
  int64_t EventTimestampNs(BackendEvent* event) override;

  void* ReserveAddresses(int, size_t bytes) override { return HostMemory::Reserve(bytes); }
  void ReleaseAddresses(void* ptr, size_t bytes) override { HostMemory::Release(ptr, bytes); }
  bool MapDevice(int device, void* ptr, size_t bytes) override { return memory_.MapDevice(device, ptr, bytes); }
  void UnmapDevice(int device, void* ptr, size_t bytes) override { memory_.UnmapDevice(device, ptr, bytes); }
  void CopyInTask(void* dst, const void* src, size_t bytes, CopyKind kind) override;
  void FillInTask(void* dst, int value, size_t bytes) override;
  void MakeBlocking(BackendStream* stream) override;
  void AbortStream(BackendStream* stream, const std::string& reason) override;

 private:
  const HostOptions options_;
  HostMemory memory_;
};

}  // namespace npu

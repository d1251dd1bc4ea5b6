// Wraps another backend and makes chosen calls fail, to test the state that a failure leaves. Failing allocations
// return null, failing waits return a status after they have waited, KernelsReachHostMemory says no, and all other
// calls throw before they have any effect.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "ep/runtime/backend.h"
#include "ep/runtime/backend_extensions.h"

namespace npu {

class FaultInjection final : public Backend, public BackendExtensions {
 public:
  explicit FaultInjection(std::unique_ptr<Backend> backend);
  // Throws Error(kUnsupported) unless ORT_NPU_FAULT_INJECTION was set.
  static FaultInjection& Of(Backend& backend);

  // From now on, the `nth` call of the function named `call` ("EventRecord") fails, and the `times` - 1 calls after it.
  void Arm(const std::string& call, int64_t nth, int64_t times = 1);
  // Stops injecting. Returns the number of calls that failed since Arm().
  int64_t Disarm();
  int64_t failed() const;
  // Number of calls of each function that can fail.
  std::map<std::string, int64_t> calls() const;
  // Number of live objects: "streams", "events", "device" and "pinned" memory, "addresses".
  std::map<std::string, int64_t> held() const;

  const char* name() const override { return backend_->name(); }
  int DeviceCount() const override { return backend_->DeviceCount(); }
  DeviceProperties Properties(int device) const override { return backend_->Properties(device); }
  bool KernelsReachHostMemory() const override;

  void* AllocDevice(int device, size_t bytes) override;
  void FreeDevice(int device, void* ptr, size_t bytes) override;
  void* AllocPinned(size_t bytes) override;
  void FreePinned(void* ptr) override;

  BackendStream* CreateStream(int device, int priority) override;
  void DestroyStream(BackendStream* stream) override;
  void Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes) override;
  void LaunchHost(BackendStream* stream, const char* op, Task task) override;
  void RunCaptured(Task& task) override;
  void LaunchAlways(BackendStream* stream, const char* op, std::function<void(const Status&)> task) override;
  void Copy(BackendStream* stream, void* dst, const void* src, size_t bytes, CopyKind kind) override;
  void CopyNow(int device, void* dst, const void* src, size_t bytes, CopyKind kind) override;
  void Memset(BackendStream* stream, void* dst, int value, size_t bytes) override;
  bool StreamQuery(BackendStream* stream) override { return backend_->StreamQuery(stream); }
  Status StreamSynchronize(BackendStream* stream) override;
  Status StreamStatus(BackendStream* stream) override { return backend_->StreamStatus(stream); }
  void StreamResume(BackendStream* stream, Status failure) override;

  BackendEvent* CreateEvent(bool timing) override;
  void DestroyEvent(BackendEvent* event) override;
  void EventRecord(BackendEvent* event, BackendStream* stream) override;
  void StreamWaitEvent(BackendStream* stream, BackendEvent* event) override;
  bool EventQuery(BackendEvent* event) override { return backend_->EventQuery(event); }
  Status EventSynchronize(BackendEvent* event) override;
  Status EventStatus(BackendEvent* event) override { return backend_->EventStatus(event); }
  int64_t EventTimestampNs(BackendEvent* event) override { return backend_->EventTimestampNs(event); }

  void* ReserveAddresses(int device, size_t bytes) override;
  void ReleaseAddresses(void* ptr, size_t bytes) override;
  bool MapDevice(int device, void* ptr, size_t bytes) override;
  void UnmapDevice(int device, void* ptr, size_t bytes) override;
  void CopyInTask(void* dst, const void* src, size_t bytes, CopyKind kind) override;
  void FillInTask(void* dst, int value, size_t bytes) override;
  void MakeBlocking(BackendStream* stream) override;
  void AbortStream(BackendStream* stream, const std::string& reason) override;

 private:
  bool Fails(const char* call) const;  // counts the call
  void ThrowIfFails(const char* call);
  Status WithFault(const char* call, Status status);
  template <class T>
  T* Keep(const char* kind, T* made);
  void Forget(const char* kind, const void* gone);
  BackendExtensions& extensions() { return BackendExtensions::Of(*backend_); }

  const std::unique_ptr<Backend> backend_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, int64_t> calls_;
  std::map<std::string, std::unordered_set<const void*>> held_;
  std::string armed_;
  mutable int64_t passing_ = 0, failing_ = 0, failed_ = 0;
};

}  // namespace npu

// The host backend with calls that a test can count and make fail.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>

#include "ep/runtime/backend.h"
#include "ep/runtime/host/host_backend.h"

namespace npu::test {

class WatchedBackend : public Backend {
 public:
  explicit WatchedBackend(size_t limit) : host_(MakeHostBackend({1, limit, "test device"})) {}

  // The number of following calls that throw.
  std::atomic<int> failing_records{0}, failing_always{0};
  std::atomic<int> event_queries{0};
  // Called after each query of a stream, with its result.
  std::function<void(BackendStream*, bool)> after_query;

  const char* name() const override { return host_->name(); }
  int DeviceCount() const override { return host_->DeviceCount(); }
  DeviceProperties Properties(int device) const override { return host_->Properties(device); }
  bool KernelsReachHostMemory() const override { return true; }
  void* AllocDevice(int device, size_t bytes) override { return host_->AllocDevice(device, bytes); }
  void FreeDevice(int device, void* p, size_t bytes) override { host_->FreeDevice(device, p, bytes); }
  void* AllocPinned(size_t bytes) override { return host_->AllocPinned(bytes); }
  void FreePinned(void* p) override { host_->FreePinned(p); }
  BackendStream* CreateStream(int device, int priority) override { return host_->CreateStream(device, priority); }
  void DestroyStream(BackendStream* s) override { host_->DestroyStream(s); }
  void Launch(BackendStream* s, const char* op, Task task, size_t bytes) override {
    host_->Launch(s, op, std::move(task), bytes);
  }
  void LaunchHost(BackendStream* s, const char* op, Task task) override { host_->LaunchHost(s, op, std::move(task)); }
  void RunCaptured(Task& task) override { host_->RunCaptured(task); }
  void LaunchAlways(BackendStream* s, const char* op, std::function<void(const Status&)> task) override {
    FailIf(failing_always);
    host_->LaunchAlways(s, op, std::move(task));
  }
  void Copy(BackendStream* s, void* dst, const void* src, size_t bytes, CopyKind kind) override {
    host_->Copy(s, dst, src, bytes, kind);
  }
  void CopyNow(int device, void* dst, const void* src, size_t bytes, CopyKind kind) override {
    host_->CopyNow(device, dst, src, bytes, kind);
  }
  void Memset(BackendStream* s, void* dst, int value, size_t bytes) override { host_->Memset(s, dst, value, bytes); }
  bool StreamQuery(BackendStream* s) override {
    const bool idle = host_->StreamQuery(s);
    if (after_query) after_query(s, idle);
    return idle;
  }
  Status StreamSynchronize(BackendStream* s) override { return host_->StreamSynchronize(s); }
  Status StreamStatus(BackendStream* s) override { return host_->StreamStatus(s); }
  void StreamResume(BackendStream* s, Status failure) override { host_->StreamResume(s, std::move(failure)); }
  BackendEvent* CreateEvent(bool timing) override { return host_->CreateEvent(timing); }
  void DestroyEvent(BackendEvent* e) override { host_->DestroyEvent(e); }
  void EventRecord(BackendEvent* e, BackendStream* s) override {
    FailIf(failing_records);
    host_->EventRecord(e, s);
  }
  void StreamWaitEvent(BackendStream* s, BackendEvent* e) override { host_->StreamWaitEvent(s, e); }
  bool EventQuery(BackendEvent* e) override {
    ++event_queries;
    return host_->EventQuery(e);
  }
  Status EventSynchronize(BackendEvent* e) override { return host_->EventSynchronize(e); }
  Status EventStatus(BackendEvent* e) override { return host_->EventStatus(e); }
  int64_t EventTimestampNs(BackendEvent* e) override { return host_->EventTimestampNs(e); }

 private:
  static void FailIf(std::atomic<int>& failing) {
    if (failing > 0 && failing-- > 0) throw std::runtime_error("injected");
  }

  const std::unique_ptr<Backend> host_;
};

}  // namespace npu::test

#include "ep/runtime/fault_injection.h"

#include <utility>

#include "ep/runtime/error.h"

namespace npu {
namespace {

std::string MessageOf(const char* call) { return Concat("[fault] injected failure of ", call); }

}  // namespace

FaultInjection::FaultInjection(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

FaultInjection& FaultInjection::Of(Backend& backend) {
  auto* injection = dynamic_cast<FaultInjection*>(&backend);
  if (injection == nullptr)
    Fail(ErrorCode::kUnsupported,
         "[fault] expected a process in which calls can be made to fail: set ORT_NPU_FAULT_INJECTION=1 before the "
         "runtime starts");
  return *injection;
}

void FaultInjection::Arm(const std::string& call, int64_t nth, int64_t times) {
  NPU_CHECK(nth >= 1 && times >= 1, "[fault] expected a call to fail from 1 up, got ", nth, " and ", times, " times");
  std::lock_guard lock(mutex_);
  armed_ = call;
  passing_ = nth - 1;
  failing_ = times;
  failed_ = 0;
}

int64_t FaultInjection::Disarm() {
  std::lock_guard lock(mutex_);
  armed_.clear();
  return failed_;
}

int64_t FaultInjection::failed() const {
  std::lock_guard lock(mutex_);
  return failed_;
}

std::map<std::string, int64_t> FaultInjection::calls() const {
  std::lock_guard lock(mutex_);
  return calls_;
}

std::map<std::string, int64_t> FaultInjection::held() const {
  std::lock_guard lock(mutex_);
  std::map<std::string, int64_t> counts;
  for (const auto& [kind, objects] : held_) counts[kind] = static_cast<int64_t>(objects.size());
  return counts;
}

bool FaultInjection::Fails(const char* call) const {
  std::lock_guard lock(mutex_);
  ++calls_[call];
  if (armed_ != call) return false;
  if (passing_ > 0) {
    --passing_;
    return false;
  }
  if (failing_ == 0) return false;
  --failing_;
  ++failed_;
  return true;
}

void FaultInjection::ThrowIfFails(const char* call) {
  if (Fails(call)) Fail(ErrorCode::kDeviceError, MessageOf(call));
}

Status FaultInjection::WithFault(const char* call, Status status) {
  if (Fails(call) && status == nullptr) status = MakeFailure(MessageOf(call));
  return status;
}

template <class T>
T* FaultInjection::Keep(const char* kind, T* made) {
  std::lock_guard lock(mutex_);
  if (made != nullptr) held_[kind].insert(made);
  return made;
}

void FaultInjection::Forget(const char* kind, const void* gone) {
  std::lock_guard lock(mutex_);
  held_[kind].erase(gone);
}

bool FaultInjection::KernelsReachHostMemory() const {
  return !Fails("KernelsReachHostMemory") && backend_->KernelsReachHostMemory();
}

void* FaultInjection::AllocDevice(int device, size_t bytes) {
  return Fails("AllocDevice") ? nullptr : Keep("device", backend_->AllocDevice(device, bytes));
}
void FaultInjection::FreeDevice(int device, void* ptr, size_t bytes) {
  Forget("device", ptr);
  backend_->FreeDevice(device, ptr, bytes);
}
void* FaultInjection::AllocPinned(size_t bytes) {
  return Fails("AllocPinned") ? nullptr : Keep("pinned", backend_->AllocPinned(bytes));
}
void FaultInjection::FreePinned(void* ptr) {
  Forget("pinned", ptr);
  backend_->FreePinned(ptr);
}

BackendStream* FaultInjection::CreateStream(int device, int priority) {
  ThrowIfFails("CreateStream");
  return Keep("streams", backend_->CreateStream(device, priority));
}
void FaultInjection::DestroyStream(BackendStream* stream) {
  Forget("streams", stream);
  backend_->DestroyStream(stream);
}
void FaultInjection::Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes) {
  ThrowIfFails("Launch");
  backend_->Launch(stream, op, std::move(task), held_bytes);
}
void FaultInjection::LaunchHost(BackendStream* stream, const char* op, Task task) {
  ThrowIfFails("LaunchHost");
  backend_->LaunchHost(stream, op, std::move(task));
}
void FaultInjection::RunCaptured(Task& task) {
  ThrowIfFails("RunCaptured");
  backend_->RunCaptured(task);
}
void FaultInjection::LaunchAlways(BackendStream* stream, const char* op, std::function<void(const Status&)> task) {
  ThrowIfFails("LaunchAlways");
  backend_->LaunchAlways(stream, op, std::move(task));
}
void FaultInjection::Copy(BackendStream* stream, void* dst, const void* src, size_t bytes, CopyKind kind) {
  ThrowIfFails("Copy");
  backend_->Copy(stream, dst, src, bytes, kind);
}
void FaultInjection::CopyNow(int device, void* dst, const void* src, size_t bytes, CopyKind kind) {
  ThrowIfFails("CopyNow");
  backend_->CopyNow(device, dst, src, bytes, kind);
}
void FaultInjection::Memset(BackendStream* stream, void* dst, int value, size_t bytes) {
  ThrowIfFails("Memset");
  backend_->Memset(stream, dst, value, bytes);
}
Status FaultInjection::StreamSynchronize(BackendStream* stream) {
  return WithFault("StreamSynchronize", backend_->StreamSynchronize(stream));
}
void FaultInjection::StreamResume(BackendStream* stream, Status failure) {
  backend_->StreamResume(stream, std::move(failure));
}

BackendEvent* FaultInjection::CreateEvent(bool timing) {
  ThrowIfFails("CreateEvent");
  return Keep("events", backend_->CreateEvent(timing));
}
void FaultInjection::DestroyEvent(BackendEvent* event) {
  Forget("events", event);
  backend_->DestroyEvent(event);
}
void FaultInjection::EventRecord(BackendEvent* event, BackendStream* stream) {
  ThrowIfFails("EventRecord");
  backend_->EventRecord(event, stream);
}
void FaultInjection::StreamWaitEvent(BackendStream* stream, BackendEvent* event) {
  ThrowIfFails("StreamWaitEvent");
  backend_->StreamWaitEvent(stream, event);
}
Status FaultInjection::EventSynchronize(BackendEvent* event) {
  return WithFault("EventSynchronize", backend_->EventSynchronize(event));
}

void* FaultInjection::ReserveAddresses(int device, size_t bytes) {
  return Fails("ReserveAddresses") ? nullptr : Keep("addresses", extensions().ReserveAddresses(device, bytes));
}
void FaultInjection::ReleaseAddresses(void* ptr, size_t bytes) {
  Forget("addresses", ptr);
  extensions().ReleaseAddresses(ptr, bytes);
}
bool FaultInjection::MapDevice(int device, void* ptr, size_t bytes) {
  return !Fails("MapDevice") && extensions().MapDevice(device, ptr, bytes);
}
void FaultInjection::UnmapDevice(int device, void* ptr, size_t bytes) { extensions().UnmapDevice(device, ptr, bytes); }
void FaultInjection::CopyInTask(void* dst, const void* src, size_t bytes, CopyKind kind) {
  ThrowIfFails("CopyInTask");
  extensions().CopyInTask(dst, src, bytes, kind);
}
void FaultInjection::FillInTask(void* dst, int value, size_t bytes) {
  ThrowIfFails("FillInTask");
  extensions().FillInTask(dst, value, bytes);
}
void FaultInjection::MakeBlocking(BackendStream* stream) {
  ThrowIfFails("MakeBlocking");
  extensions().MakeBlocking(stream);
}
void FaultInjection::AbortStream(BackendStream* stream, const std::string& reason) {
  extensions().AbortStream(stream, reason);
}

}  // namespace npu

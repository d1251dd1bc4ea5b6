#include "ep/runtime/stream.h"

#include <atomic>
#include <utility>

#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/blocking.h"
#include "ep/runtime/device.h"
#include "ep/runtime/environment.h"
#include "ep/runtime/graph_recording.h"
#include "ep/runtime/launch_trace.h"
#include "ep/runtime/log.h"
#include "ep/runtime/outstanding.h"
#include "ep/runtime/retirement.h"
#include "ep/runtime/stream_set.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

bool LaunchBlocking() {
  static const bool blocking = LaunchBlockingFromEnvironment();
  return blocking;
}

void CheckRunning(const Device& device) {
  if (device.stopped()) [[unlikely]]
    Fail(ErrorCode::kDeviceError, "NPU ", device.index(), " is stopped (FORCE STOP): call restart_device first");
}

uint64_t NextStreamId() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

Stream::Stream(Device& device, int priority, StreamOwner owner)
    : device_(device),
      priority_(priority),
      id_(NextStreamId()),
      users_(owner == StreamOwner::kThreads ? std::make_unique<StreamUsers>(id_) : nullptr),
      handle_(device.backend().CreateStream(device.index(), priority)) {
  try {
    device_.streams_->Add(this);
  } catch (...) {
    device_.backend().DestroyStream(handle_);
    throw;
  }
}

Stream::~Stream() {
  device_.streams_->Leave(this);
  if (InForkedChild()) return;
  RetireAfter(device_.backend(), {handle_}, [&device = device_, id = id_, handle = handle_] {
    device.streams_->Forget(handle);
    if (const Status status = device.backend().StreamSynchronize(handle))
      NPU_LOG(kError, "stream ", id, " was destroyed with an error that was never reported: ", status->message);
    Device::ForgetStream(device.backend(), id);
    device.backend().DestroyStream(handle);
  });
}

// Called before this thread enqueues anything.
void Stream::BeforeWork() {
  CheckRunning(device_);
  if (users_ != nullptr) users_->BeforeWork();
  if (Outstanding::Any()) [[unlikely]]
    Outstanding::Join(*this);
}

// For work that is enqueued even if this thread has an unreported failure.
void Stream::JoinOutstanding() {
  if (!Outstanding::Any()) [[likely]]
    return;
  if (users_ != nullptr) users_->BeforeSilentWork();
  Outstanding::Join(*this);
}

bool Stream::BeforeLaunch(const char* op, Task& task, bool of_host) {
  NPU_CHECK(static_cast<bool>(task), "[", op, "] expected a task to launch, got an empty one");
  CheckRunning(device_);
  if (Recording::Any() && Recording::KeepLaunch(*this, op, task, of_host)) return true;
  BeforeWork();
  if (LaunchTrace::On()) task = LaunchTrace::Timed(op, device_.index(), id_, std::move(task));
  return false;
}

void Stream::Launch(const char* op, Task task, size_t held_bytes) {
  if (BeforeLaunch(op, task, /*of_host=*/false)) return;
  device_.backend().Launch(handle_, op, std::move(task), held_bytes);
  if (LaunchBlocking()) Synchronize();
}

void Stream::LaunchHost(const char* op, Task task) {
  if (BeforeLaunch(op, task, /*of_host=*/true)) return;
  device_.backend().LaunchHost(handle_, op, std::move(task));
  if (LaunchBlocking()) Synchronize();
}

void Stream::LaunchAlways(const char* op, std::function<void(const Status&)> task) {
  CheckRunning(device_);
  if (Recording::Any() && Recording::KeepLaunchAlways(*this, op, task)) return;
  JoinOutstanding();
  device_.backend().LaunchAlways(handle_, op, std::move(task));
}

void Stream::Copy(void* dst, const void* src, size_t bytes, CopyKind kind) {
  if (bytes == 0) return;
  NPU_CHECK(dst != nullptr && src != nullptr, "[copy] expected two addresses for ", bytes, " bytes, got null");
  if (Recording::Any() || LaunchTrace::On()) {  // as a task, like any launch
    BackendExtensions& extensions = BackendExtensions::Of(device_.backend());
    return LaunchHost("copy", Task([=, &extensions] { extensions.CopyInTask(dst, src, bytes, kind); }));
  }
  BeforeWork();
  device_.backend().Copy(handle_, dst, src, bytes, kind);
  if (LaunchBlocking()) Synchronize();
}

void Stream::Memset(void* dst, int value, size_t bytes) {
  if (bytes == 0) return;
  NPU_CHECK(dst != nullptr, "[memset] expected an address for ", bytes, " bytes, got null");
  if (Recording::Any() || LaunchTrace::On()) {
    BackendExtensions& extensions = BackendExtensions::Of(device_.backend());
    return LaunchHost("memset", Task([=, &extensions] { extensions.FillInTask(dst, value, bytes); }));
  }
  BeforeWork();
  device_.backend().Memset(handle_, dst, value, bytes);
  if (LaunchBlocking()) Synchronize();
}

void Stream::Wait(const Event& event) {
  if (Recording::Any() && Recording::KeepWait(*this, event)) return;
  if (users_ != nullptr) users_->BeforeWork();  // a failure that the event carries is reported to this thread
  device_.backend().StreamWaitEvent(handle_, event.handle());
}

bool Stream::Query() {
  if (Recording::Any()) Recording::CheckWaitFor(*this, "query");
  if (!device_.backend().StreamQuery(handle_)) return false;
  ThrowIfFailed(Told(device_.backend().StreamStatus(handle_)));
  return true;
}

void Stream::Synchronize() {
  if (Recording::Any()) Recording::CheckWaitFor(*this, "synchronize");
  const MayBlock scope;
  Failures failures;
  Status status = device_.backend().StreamSynchronize(handle_);
  if (users_ == nullptr && status != nullptr) device_.backend().StreamResume(handle_, status);
  failures.Add(Told(std::move(status)));
  if (Outstanding::Any()) Outstanding::Wait(device_, failures);
  failures.ThrowIfAny();
}

void Stream::TellNews() {
  if (users_ != nullptr) ThrowIfFailed(users_->News());
}

Status Stream::Told(Status status) {
  if (users_ == nullptr) return status;
  if (status == nullptr) return users_->AfterGoodWait();
  users_->AfterFailure(status, [&] { device_.backend().StreamResume(handle_, status); });
  return status;
}

Event::Event(Backend& backend, bool timing)
    : backend_(backend), timing_(timing), handle_(backend.CreateEvent(timing)) {}

Event::~Event() {
  if (Recording::Any()) Recording::Forget(*this);
  backend_.DestroyEvent(handle_);
}

void Event::Record(Stream& stream) {
  if (Recording::Any() && Recording::KeepRecord(*this, stream)) return;
  stream.JoinOutstanding();
  backend_.EventRecord(handle_, stream.handle());
  stream.TellNews();  // the record may be behind the resume of the stream
}

bool Event::Query() const {
  if (Recording::Any()) Recording::CheckWaitFor(*this, "query");
  if (!backend_.EventQuery(handle_)) return false;
  ThrowIfFailed(backend_.EventStatus(handle_));
  return true;
}

void Event::Synchronize() const {
  if (Recording::Any()) Recording::CheckWaitFor(*this, "synchronize");
  const MayBlock scope;
  ThrowIfFailed(backend_.EventSynchronize(handle_));
}

int64_t Event::TimestampNs() const { return backend_.EventTimestampNs(handle_); }

double Event::ElapsedMs(const Event& end) const {
  NPU_CHECK(timing_ && end.timing_, "elapsed time: expected two events made with timing enabled");
  const int64_t from = TimestampNs(), to = end.TimestampNs();
  NPU_CHECK(from >= 0 && to >= 0, "elapsed time: expected two recorded and completed events; synchronize them first");
  return static_cast<double>(to - from) / 1e6;
}

}  // namespace npu

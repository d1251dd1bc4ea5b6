// Streams and events: thin, checked handles over the backend's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ep/runtime/backend.h"
#include "ep/runtime/stream_users.h"

namespace npu {

class Device;
class Event;

// Who owns a stream: the threads that launch on it, each of which receives its failures, or one owner, whose
// Synchronize() alone resumes it: docs/decisions/0012.
enum class StreamOwner { kThreads, kOne };

class Stream {
 public:
  Stream(Device& device, int priority, StreamOwner owner = StreamOwner::kThreads);
  // Does not wait: queued work still runs. An error that was never reported is logged.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  uint64_t id() const { return id_; }  // unique in the process, never reused
  int priority() const { return priority_; }
  BackendStream* handle() const { return handle_; }

  // Enqueues and returns. With ORT_NPU_LAUNCH_BLOCKING=1, waits and throws the kernel's error. `held_bytes` of host
  // memory are owned by the task. Throws a failure that another thread sharing the stream received before it was
  // resumed.
  void Launch(const char* op, Task task, size_t held_bytes = 0);
  void Copy(void* dst, const void* src, size_t bytes, CopyKind kind);
  void Memset(void* dst, int value, size_t bytes);
  // Host code in the stream's order: it accesses device memory only through copies.
  void LaunchHost(const char* op, Task task);
  void HostCallback(Task callback) { LaunchHost("host_callback", std::move(callback)); }
  // Runs in its turn even behind failed work, and receives the failure.
  void LaunchAlways(const char* op, std::function<void(const Status&)> task);
  // A failure before the event's record becomes this stream's. Throws as Launch does.
  void Wait(const Event& event);
  // Both throw Error(kDeviceError), "[npu_rms_norm] …", when work of the stream failed or was skipped.
  bool Query();
  void Synchronize();
  // Throws a failure that another thread sharing the stream received before it was resumed, if this thread's work may
  // have been skipped: for callers that rely on that work without waiting for the stream.
  void TellNews();

 private:
  friend class Device;
  friend class Event;
  friend class ExternalEvent;
  // True when a capture keeps the launch, which must then not be enqueued.
  bool BeforeLaunch(const char* op, Task& task, bool of_host);
  void BeforeWork();
  void JoinOutstanding();
  // Called after this thread waited, with the stream's status. Resumes a shared stream if this thread may do so;
  // returns the failure to report to this thread.
  Status Told(Status status);

  Device& device_;
  int priority_;
  uint64_t id_;
  std::unique_ptr<StreamUsers> users_;  // null: one owner
  BackendStream* handle_;
};

class Event {
 public:
  explicit Event(Backend& backend, bool timing = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void Record(Stream& stream);  // throws as Stream::Launch does
  // Both throw Error(kDeviceError) to every caller when work before the record failed or was skipped; the stream's
  // state does not change.
  bool Query() const;  // true when never recorded
  void Synchronize() const;
  int64_t TimestampNs() const;               // -1 unless recorded and completed
  double ElapsedMs(const Event& end) const;  // throws unless both have timing and completed
  BackendEvent* handle() const { return handle_; }

 private:
  Backend& backend_;
  bool timing_;
  BackendEvent* handle_;
};

}  // namespace npu

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

// Whose a stream is: of the threads that launch on it, who are told of its failures one by one, or of one owner, who
// alone lets it run again by Synchronize(): docs/decisions/0012.
enum class StreamOwner { kThreads, kOne };

class Stream {
 public:
  Stream(Device& device, int priority, StreamOwner owner = StreamOwner::kThreads);
  // Does not wait: what is queued still runs. An error that nobody asked for is logged.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  uint64_t id() const { return id_; }  // unique in the process, never reused
  int priority() const { return priority_; }
  BackendStream* handle() const { return handle_; }

  // Enqueues and returns. With ORT_NPU_LAUNCH_BLOCKING=1, waits and throws the kernel's error. `held_bytes` of host
  // memory belong to the task. Throws what others who share the stream were told of before it ran again.
  void Launch(const char* op, Task task, size_t held_bytes = 0);
  void Copy(void* dst, const void* src, size_t bytes, CopyKind kind);
  void Memset(void* dst, int value, size_t bytes);
  // Host code in the stream's order: it reaches device memory by copies only.
  void LaunchHost(const char* op, Task task);
  void HostCallback(Task callback) { LaunchHost("host_callback", std::move(callback)); }
  // Runs in its turn even behind what failed, and is told of it.
  void LaunchAlways(const char* op, std::function<void(const Status&)> task);
  // A failure before the event's record becomes this stream's. Throws as Launch does.
  void Wait(const Event& event);
  // Both throw Error(kDeviceError), "[npu_rms_norm] …", when work of the stream failed or was skipped.
  bool Query();
  void Synchronize();
  // Throws what others who share the stream were told of before it ran again, when it may have cost this thread's work:
  // for whoever relies on that work without a wait for the stream.
  void TellNews();

 private:
  friend class Device;
  friend class Event;
  friend class ExternalEvent;
  // True when a capture keeps the launch: it is not to be enqueued.
  bool BeforeLaunch(const char* op, Task& task, bool of_host);
  void BeforeWork();
  void JoinOutstanding();
  // This thread waited and the stream's status was `status`. Lets a shared stream run again where this thread may do
  // so; returns what the thread has to be told.
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
  // Both throw Error(kDeviceError) when work before the record failed or was skipped, to everybody who asks; the
  // stream itself stays as it is.
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

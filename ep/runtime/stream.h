// Streams and events: thin, checked handles over the backend's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "ep/runtime/backend.h"

namespace npu {

class Device;
class Event;

class Stream {
 public:
  Stream(Device& device, int priority);
  ~Stream();  // drains; an error that nobody asked for is logged
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return device_; }
  uint64_t id() const { return id_; }  // unique in the process, never reused
  int priority() const { return priority_; }
  BackendStream* handle() const { return handle_; }

  // Enqueues and returns. With ORT_NPU_LAUNCH_BLOCKING=1, waits and throws the kernel's error.
  void Launch(const char* op, Task task);
  void Copy(void* dst, const void* src, size_t bytes, CopyKind kind);
  void Memset(void* dst, int value, size_t bytes);
  void HostCallback(Task callback) { Launch("host_callback", std::move(callback)); }
  void Wait(const Event& event);
  bool Query() const;
  // Throws Error(kDeviceError): "[npu_rms_norm] …" of the first failed kernel since the last call.
  void Synchronize();

 private:
  Device& device_;
  int priority_;
  uint64_t id_;
  BackendStream* handle_;
};

class Event {
 public:
  explicit Event(Backend& backend, bool timing = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void Record(Stream& stream);
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

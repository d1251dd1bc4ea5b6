// The one interface between the runtime and a device. The host backend (ep/runtime/host) is the
// embedded default; nothing above this file may know which backend runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ep/runtime/task.h"

namespace npu {

struct DeviceProperties {
  std::string name;         // what get_device_name() answers
  size_t total_memory = 0;  // bytes
  int compute_units = 0;    // cores used by the intra-op pool
  std::string isa;          // "amx", "avx512", "avx2", "portable"
};

enum class CopyKind { kHostToDevice, kDeviceToHost, kDeviceToDevice, kHostToHost };

// Opaque to everything but the backend that made them: each backend derives its own.
class BackendStream {
 protected:
  ~BackendStream() = default;
};
class BackendEvent {
 protected:
  ~BackendEvent() = default;
};

// Every call is thread-safe. Functions that enqueue return before the work is done; the work of one
// stream runs in FIFO order, streams run concurrently.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  virtual int DeviceCount() const = 0;
  virtual DeviceProperties Properties(int device) const = 0;
  // True when kernels may read and write ordinary host memory in place.
  virtual bool KernelsReachHostMemory() const = 0;

  // Raw memory, in the allocator's segments. Return null when the device has no more.
  virtual void* AllocDevice(int device, size_t bytes) = 0;
  virtual void FreeDevice(int device, void* ptr, size_t bytes) = 0;
  virtual void* AllocPinned(size_t bytes) = 0;
  virtual void FreePinned(void* ptr) = 0;

  virtual BackendStream* CreateStream(int device, int priority) = 0;
  virtual void DestroyStream(BackendStream* stream) = 0;  // drains it first
  // `op` is a string with static storage or one the op registry owns: the name an error carries.
  virtual void Launch(BackendStream* stream, const char* op, Task task) = 0;
  virtual void Copy(BackendStream* stream, void* dst, const void* src, size_t bytes, CopyKind kind) = 0;
  // Done when it returns, and in no stream's order: the caller has waited for whoever uses either side.
  virtual void CopyNow(int device, void* dst, const void* src, size_t bytes, CopyKind kind) = 0;
  virtual void Memset(BackendStream* stream, void* dst, int value, size_t bytes) = 0;
  virtual bool StreamQuery(BackendStream* stream) = 0;
  // Blocks until the stream is idle; returns the first kernel error since the last call ("" if none)
  // and clears it, so that the device stays usable.
  virtual std::string StreamSynchronize(BackendStream* stream) = 0;

  virtual BackendEvent* CreateEvent(bool timing) = 0;
  virtual void DestroyEvent(BackendEvent* event) = 0;
  virtual void EventRecord(BackendEvent* event, BackendStream* stream) = 0;
  virtual void StreamWaitEvent(BackendStream* stream, BackendEvent* event) = 0;
  virtual bool EventQuery(BackendEvent* event) = 0;
  virtual void EventSynchronize(BackendEvent* event) = 0;
  virtual int64_t EventTimestampNs(BackendEvent* event) = 0;  // device clock; -1 before it completed
};

}  // namespace npu

// The one interface between the runtime and a device. The host backend (ep/runtime/host) is the
// embedded default; nothing above this file may know which backend runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "ep/runtime/status.h"
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

// Every call is thread-safe. Functions that enqueue return before the work is done; the work of one stream runs in FIFO
// order, streams run concurrently. What makes, enqueues, records or copies may throw, before it has done anything;
// frees, destroys, queries and StreamResume never fail, a wait only by its status (or where it would wait for itself).
//
// Work that fails stops its stream: what is behind it is skipped, and so is what waits for an event recorded behind it,
// on any stream. A status says so to everybody who waits; only StreamResume lets a stream run again. Queries tell
// whether work is over, however it ended, and never throw.
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
  virtual void DestroyStream(BackendStream* stream) = 0;  // which is idle
  // `op` is a string with static storage or one the op registry owns: the name an error carries. `held_bytes` of host
  // memory belong to the task: what is queued is bounded in bytes, too.
  virtual void Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes = 0) = 0;
  // Host code in the stream's order, as callbacks and replays are: it reaches device memory by copies only.
  virtual void LaunchHost(BackendStream* stream, const char* op, Task task) = 0;
  // What Launch would do in its turn, at once: called by replays, for each launch of their graph.
  virtual void RunCaptured(Task& task) = 0;
  // Runs in its turn even behind what failed, and is told of it: for what must not be lost, as frees and signals are.
  virtual void LaunchAlways(BackendStream* stream, const char* op, std::function<void(const Status&)> task) = 0;
  virtual void Copy(BackendStream* stream, void* dst, const void* src, size_t bytes, CopyKind kind) = 0;
  // Done when it returns, and in no stream's order: the caller has waited for whoever uses either side.
  virtual void CopyNow(int device, void* dst, const void* src, size_t bytes, CopyKind kind) = 0;
  virtual void Memset(BackendStream* stream, void* dst, int value, size_t bytes) = 0;
  virtual bool StreamQuery(BackendStream* stream) = 0;
  // Blocks until what was enqueued before is over. Clears nothing: everybody who waits is told.
  virtual Status StreamSynchronize(BackendStream* stream) = 0;
  // Work enqueued from here on runs again, if the stream has stopped for `failure`; null: whatever it stopped for.
  virtual void StreamResume(BackendStream* stream, Status failure) = 0;

  virtual BackendEvent* CreateEvent(bool timing) = 0;
  virtual void DestroyEvent(BackendEvent* event) = 0;
  virtual void EventRecord(BackendEvent* event, BackendStream* stream) = 0;
  virtual void StreamWaitEvent(BackendStream* stream, BackendEvent* event) = 0;
  virtual bool EventQuery(BackendEvent* event) = 0;
  // What was enqueued before the record, as it ended. Null when never recorded.
  virtual Status EventSynchronize(BackendEvent* event) = 0;
  virtual Status EventStatus(BackendEvent* event) = 0;        // null before it completed
  virtual int64_t EventTimestampNs(BackendEvent* event) = 0;  // device clock; -1 before it completed
};

}  // namespace npu

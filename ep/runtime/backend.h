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
  std::string name;         // what get_device_name() returns
  size_t total_memory = 0;  // bytes
  int compute_units = 0;    // cores used by the intra-op pool
  std::string isa;          // the level's name, such as "avx2" or "neon"
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
// order, streams run concurrently. Functions that create, enqueue, record or copy may throw, and then have no effect;
// frees, destroys, queries and StreamResume never fail, and a wait fails only through its status (or if it would wait
// for itself).
//
// Work that fails stops its stream: work behind it is skipped, and so is work on any stream that waits for an event
// recorded behind it. Every waiter receives the failure as a status; only StreamResume lets a stream run again. Queries
// report whether work has ended, in success or failure, and never throw.
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
  virtual void DestroyStream(BackendStream* stream) = 0;  // must be idle
  // `op` names the launch in errors: a string with static storage, or one that the op registry owns. `held_bytes` of
  // host memory are owned by the task: the queue is bounded in bytes, too.
  virtual void Launch(BackendStream* stream, const char* op, Task task, size_t held_bytes = 0) = 0;
  // Host code in the stream's order, such as callbacks and replays: it accesses device memory only through copies.
  virtual void LaunchHost(BackendStream* stream, const char* op, Task task) = 0;
  // Runs immediately what Launch would enqueue; replays call it for each launch of their graph.
  virtual void RunCaptured(Task& task) = 0;
  // Runs in its turn even behind failed work and receives the failure: for tasks that must not be lost, such as frees
  // and signals.
  virtual void LaunchAlways(BackendStream* stream, const char* op, std::function<void(const Status&)> task) = 0;
  virtual void Copy(BackendStream* stream, void* dst, const void* src, size_t bytes, CopyKind kind) = 0;
  // Done when it returns, and not ordered on any stream: the caller has waited for the users of both sides.
  virtual void CopyNow(int device, void* dst, const void* src, size_t bytes, CopyKind kind) = 0;
  virtual void Memset(BackendStream* stream, void* dst, int value, size_t bytes) = 0;
  virtual bool StreamQuery(BackendStream* stream) = 0;
  // Blocks until the work enqueued before has ended. Does not clear a failure: every waiter receives it.
  virtual Status StreamSynchronize(BackendStream* stream) = 0;
  // How the work that has ended did. Does not wait, also when another thread launches meanwhile.
  virtual Status StreamStatus(BackendStream* stream) = 0;
  // If the stream stopped for `failure` (null: for any failure), work enqueued from here on runs again.
  virtual void StreamResume(BackendStream* stream, Status failure) = 0;

  virtual BackendEvent* CreateEvent(bool timing) = 0;
  virtual void DestroyEvent(BackendEvent* event) = 0;
  virtual void EventRecord(BackendEvent* event, BackendStream* stream) = 0;
  virtual void StreamWaitEvent(BackendStream* stream, BackendEvent* event) = 0;
  virtual bool EventQuery(BackendEvent* event) = 0;
  // Blocks until the work enqueued before the record has ended and returns how; null when never recorded.
  virtual Status EventSynchronize(BackendEvent* event) = 0;
  virtual Status EventStatus(BackendEvent* event) = 0;        // null before it completed
  virtual int64_t EventTimestampNs(BackendEvent* event) = 0;  // device clock; -1 before it completed
};

}  // namespace npu

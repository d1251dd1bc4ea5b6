// A FIFO stream of the host backend: one worker thread that runs the launches. Those of a blocking stream run on the
// thread that launches, which would otherwise sleep until the worker wakes it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "ep/runtime/backend.h"
#include "ep/runtime/host/command_queue.h"
#include "ep/runtime/host/host_event.h"

namespace npu {

class HostStream final : public BackendStream {
 public:
  HostStream(std::string thread_name, int device);
  ~HostStream();  // drains
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void Launch(const char* op, Task task, size_t held_bytes = 0);
  void LaunchAlways(const char* op, std::function<void(const Status&)> task);
  // From now on, Launch() returns when the work is done.
  void MakeBlocking() { blocking_ = true; }
  // Skips the queued work; every waiter receives the reason.
  void Abort(const std::string& reason) { Stop(MakeFailure("[stop_device] " + reason)); }
  // A marker that passes when all earlier work has ended, and has its status.
  std::shared_ptr<HostMarker> Mark();
  void WaitFor(std::shared_ptr<HostMarker> marker);
  bool Idle() const { return queue_.pending() == 0 && !on_caller_.load(std::memory_order_acquire); }
  // Waits for everything launched before.
  Status Synchronize();
  // Of the work that has ended.
  Status status() const;
  // If the stream stopped for `failure` (null: for any failure), work launched from here on runs again.
  void Resume(Status failure);

 private:
  void Enqueue(Command command);
  // Runs the command on this thread if nothing is queued before it.
  bool RunOnCaller(Command& command);
  void EnsureWorker();
  void Work();
  void Run(Command& command);
  void Throttle();
  void Stop(Status status);  // keeps an earlier one

  const std::string thread_name_;
  const int device_;
  CommandQueue queue_;
  std::atomic<bool> blocking_{false};
  std::mutex run_mutex_;                // of a blocking stream: held by the thread that runs a command
  std::atomic<bool> on_caller_{false};  // whether that is a thread that launches
  std::atomic<bool> failed_{false};     // whether there is a status
  mutable std::mutex status_mutex_;
  Status status_;
  std::atomic<bool> started_{false};
  std::mutex start_mutex_;
  std::thread worker_;
};

}  // namespace npu

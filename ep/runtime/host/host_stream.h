// A FIFO stream of the host backend: one worker thread that runs what was launched.
#pragma once

#include <atomic>
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
  explicit HostStream(std::string thread_name);
  ~HostStream();  // drains
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void Launch(const char* op, Task task);
  // From now on Launch() returns when the work is done.
  void MakeBlocking() { blocking_ = true; }
  // Skips what is queued; the next Synchronize() returns the reason.
  void Abort(const std::string& reason) { KeepError("stop_device", reason.c_str()); }
  // A marker that passes when all earlier work is done, failed or skipped.
  std::shared_ptr<HostMarker> Mark();
  void WaitFor(std::shared_ptr<HostMarker> marker);
  bool Idle() const { return queue_.pending() == 0; }
  // Waits for everything launched before; returns and clears the first error.
  std::string Synchronize();

 private:
  void Enqueue(Command command);
  void EnsureWorker();
  void Work();
  void Run(Command& command);
  void Throttle();
  void KeepError(const char* op, const char* what);

  const std::string thread_name_;
  CommandQueue queue_;
  std::atomic<bool> blocking_{false};
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::string error_;
  std::atomic<bool> started_{false};
  std::mutex start_mutex_;
  std::thread worker_;
};

}  // namespace npu

// The runs of one session: the streams they go through, and their order. A run comes after what its caller has
// enqueued, and what the caller enqueues next comes after the run, whether it was waited for or not
// (docs/decisions/0013).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ep/provider/device_state.h"

namespace npu::provider {

class SessionRuns {
 public:
  // `compute_stream`: the handle of the stream that all runs follow; 0: each follows its thread's current stream.
  SessionRuns(DeviceState& device, uintptr_t compute_stream);
  ~SessionRuns();
  SessionRuns(const SessionRuns&) = delete;
  SessionRuns& operator=(const SessionRuns&) = delete;

  // For one of onnxruntime's streams; kept until the session has gone.
  Stream& TakeStream();
  void GiveStream(Stream& stream);

  // A run begins on this thread. `compute_stream` as above; 0: the session's. `caller`: what
  // CallerStream() said where the run was submitted; empty: this thread submitted it.
  void Begin(uintptr_t compute_stream = 0, const std::string& caller = {});
  // Before work of the run is enqueued on `stream`.
  void Enter(Stream& stream);
  // Likewise, for the run of this thread, of whichever session.
  static void EnterCurrent(Stream& stream);
  // The run of this thread is over; its work is, too, if it was waited for. Throws when what comes next cannot be
  // ordered behind work in flight, which is waited for then.
  void End();

  // Waits for this thread's current stream and for runs that nobody waited for; throws what failed of this thread's.
  void Wait();
  // Calls `release` when what this session has enqueued so far is done.
  void ReleaseAfterRuns(std::function<void()> release);

 private:
  struct Run {
    SessionRuns* owner;
    std::vector<std::shared_ptr<const Event>> after = {};  // of the caller's stream, and of runs that it left
    Stream* caller = nullptr;  // that a run which is not waited for is joined to; null: this thread's next work
    std::vector<Stream*> streams = {};  // that work of the run was enqueued on
    const Stream* entered = nullptr;    // the last of them that this thread entered
  };
  static thread_local Run* current;
  // The end of work that nobody waited for, until it is over.
  struct Unawaited {
    uint64_t told;  // the thread that Wait() tells of a failure; 0: Outstanding tells its thread
    std::shared_ptr<const Event> done;
  };

  Stream& CallerOf(uintptr_t compute_stream, const std::string& caller, bool& elsewhere) const;
  void Join(Run& run, Stream& stream);
  void Leave(const Run& run, Stream& stream);

  DeviceState& device_;
  const uintptr_t compute_stream_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;  // all, in use or idle
  std::vector<Stream*> idle_;
  std::vector<std::unique_ptr<Run>> runs_;  // in progress
  std::vector<Unawaited> unawaited_;
};

}  // namespace npu::provider

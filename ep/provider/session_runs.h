// The runs of one session: their streams and their order. A run is ordered behind the work that its caller has
// enqueued, and the caller's next work is ordered behind the run, whether the run was waited for or not
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
  // `blocking`: where the backend can, launches on the session's streams return when they are done.
  SessionRuns(DeviceState& device, uintptr_t compute_stream, bool blocking = false);
  ~SessionRuns();
  SessionRuns(const SessionRuns&) = delete;
  SessionRuns& operator=(const SessionRuns&) = delete;

  // For one of onnxruntime's streams; kept as long as the session.
  Stream& TakeStream();
  void GiveStream(Stream& stream);

  // Begins a run on this thread. `compute_stream` as above; 0: the session's. `caller`: what CallerStream() returned on
  // the thread that submitted the run; empty: this thread submitted it.
  void Begin(uintptr_t compute_stream = 0, const std::string& caller = {});
  // To be called before work of the run is enqueued on `stream`.
  void Enter(Stream& stream);
  // The same for this thread's run of any session.
  static void EnterCurrent(Stream& stream);
  // Waits for the work of this thread's run and throws its failure, which no later run then sees.
  void Settle();
  // The same for this thread's run of any session on the device, if there is one.
  static void SettleCurrent(Device& device);
  // Ends this thread's run; its work may still be in flight unless it was waited for. Throws if later work cannot be
  // ordered behind that work, and then waits for it.
  void End();

  // Waits for this thread's current stream and for all unawaited runs; throws the failures of this thread's.
  void Wait();
  // Calls `release` when the work that this session has enqueued so far is done.
  void ReleaseAfterRuns(std::function<void()> release);

 private:
  struct Run {
    SessionRuns* owner;
    std::vector<std::shared_ptr<const Event>> after = {};  // of the caller's stream, and of its unawaited runs
    Stream* caller = nullptr;           // stream to be ordered behind the run; null: this thread's next work
    std::vector<Stream*> streams = {};  // streams with work of the run
    const Stream* entered = nullptr;    // the last stream that this thread entered
  };
  // This thread's run. A session may fail after Begin, and end without End: its run is gone with it.
  static thread_local std::weak_ptr<Run> current;
  // The end of unawaited work, until it is over.
  struct Unawaited {
    uint64_t told;  // the thread to which Wait() reports a failure; 0: Outstanding reports it to its thread
    std::shared_ptr<const Event> done;
  };

  Stream& CallerOf(uintptr_t compute_stream, const std::string& caller, bool& elsewhere) const;
  void Join(Run& run, Stream& stream);
  void Leave(const Run& run, Stream& stream);

  DeviceState& device_;
  const uintptr_t compute_stream_;
  const bool blocking_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;  // all, in use or idle
  std::vector<Stream*> idle_;
  std::vector<std::shared_ptr<Run>> runs_;  // in progress
  std::vector<Unawaited> unawaited_;
};

}  // namespace npu::provider

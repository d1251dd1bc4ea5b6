// The runs of one session: their streams and their order. A run is ordered behind the work that its caller has
// enqueued, and the caller's next work is ordered behind the run, whether the run was waited for or not
// (docs/decisions/0013).
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ep/provider/device_state.h"

namespace npu::provider {

class SessionRuns : public std::enable_shared_from_this<SessionRuns> {
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
  // To be called before work of the run is enqueued on `stream`. False on a thread of onnxruntime's own while several
  // runs are in progress: the caller must then wait for that work and report its failure, because nobody else can know
  // whose it is.
  [[nodiscard]] bool Enter(Stream& stream);
  // The same for this thread's run of any session; on a thread of onnxruntime's own, for the session of the stream.
  [[nodiscard]] static bool EnterCurrent(Stream& stream);
  // Waits for the work of this thread's run and throws its failure, which no later run then sees.
  void Settle();
  // The same for this thread's run of any session on the device. A thread without one may be onnxruntime's own: it
  // waits for the runs of all sessions that such threads work for, to which it leaves their failures.
  static void SettleCurrent(Device& device);
  // Ends this thread's run; its work may still be in flight unless it was waited for. Throws if later work cannot be
  // ordered behind that work, and then waits for it.
  void End();

  // Waits for this thread's current stream and for all unawaited runs; throws the failures of this thread's.
  void Wait();
  // Calls `release` when the work that this session has enqueued so far is done.
  void ReleaseAfterRuns(std::function<void()> release);

 private:
  using Ends = std::vector<std::shared_ptr<const Event>>;
  struct Run {
    SessionRuns* owner;
    Ends after = {};                    // of the caller's stream, and of its unawaited runs
    Stream* caller = nullptr;           // stream to be ordered behind the run; null: this thread's next work
    std::vector<Stream*> streams = {};  // streams with work of this run only
    Ends ends = {};                     // of its work on streams that have left it
    const Stream* entered = nullptr;    // the last stream that this thread entered
    bool unknown_work = false;          // Enter may have returned false for this run
  };
  // This thread's runs, one inside the other: a node of the CPU, such as a custom operator, may run a session. A
  // session may fail after Begin, and end without End: its run is gone with it.
  static thread_local std::vector<std::weak_ptr<Run>> current;
  // The innermost of them; null if there is none.
  static std::shared_ptr<Run> Current();
  // The end of unawaited work, until it is over.
  struct Unawaited {
    uint64_t told;  // the thread to which Wait() reports a failure; 0: Outstanding reports it to its thread
    std::shared_ptr<const Event> done;
  };

  Stream& CallerOf(uintptr_t compute_stream, const std::string& caller, bool& elsewhere) const;
  // Orders the stream behind the work before the run and the run's work on other streams: onnxruntime gives the body of
  // an If, Loop or Scan that is on the CPU a stream of its own, and orders its work with none.
  void Join(Run& run, Stream& stream);
  // Onnxruntime gives a stream to the next run before it tells of the end of the last one. So a stream leaves its run
  // under the lock: what the run has enqueued there ends with an event, behind which the stream goes on without the
  // failures of the run.
  bool Close(Run& run, Stream& stream);
  bool Owns(const Stream& stream);
  // Waits for the work that all runs in progress have enqueued so far.
  void AwaitRuns();
  void Resume(Stream& stream);
  // Streams whose end no event could mark, and why.
  struct Unclosed {
    std::vector<Stream*> streams;
    std::exception_ptr why;
  };
  Unclosed CloseAll(Run& run);
  // Waits for streams; returns the first of their failures, with which they do not go on.
  Status Await(const std::vector<Stream*>& streams);
  void Leave(const Run& run, const std::shared_ptr<const Event>& end);

  DeviceState& device_;
  const uintptr_t compute_stream_;
  const bool blocking_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;  // all, in use or idle
  std::vector<Stream*> idle_;
  std::vector<std::shared_ptr<Run>> runs_;  // in progress
  std::vector<Unawaited> unawaited_;
  bool parallel_ = false;  // threads of onnxruntime's own work for this session
};

}  // namespace npu::provider

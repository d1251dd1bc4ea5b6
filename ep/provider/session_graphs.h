// Whole runs of a session, captured once and replayed (provider option enable_npu_graph; docs/decisions/0011).
//
// Onnxruntime calls Captured() before each run. If it is false, it runs the session between BeginRun and EndRun, where
// launches are kept instead of run, and EndRun replays them; else it calls Replay() and nothing else. It does not run
// such a session concurrently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ep/provider/device_state.h"
#include "ep/provider/session_runs.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/graph_nodes.h"

namespace npu::provider {

class SessionGraphs {
 public:
  // A run with this number is neither captured nor replayed.
  static constexpr int kNoGraph = -1;
  // For callers that never release a graph: beyond this many, the least recently used graph is destroyed.
  static constexpr size_t kMostGraphs = 64;

  SessionGraphs(DeviceState& device, std::shared_ptr<SessionRuns> runs)
      : device_(device), runs_(std::move(runs)), stream_(runs_->TakeStream()) {}
  ~SessionGraphs();

  // All runs of the session use this stream, so that a graph belongs to one stream.
  Stream& stream() const { return stream_; }

  void BeginRun(int id);
  void EndRun();
  bool capturing() const { return run_ != nullptr; }
  bool Captured(int id) const;
  // Waits, and throws the failure of a launch. Throws before it launches if the caller has bound other values than at
  // the capture.
  void Replay(int id);
  void Release(int id);  // no effect without a graph of that number

  // Count the session's kernels; removing one destroys all graphs.
  void AddKernel();
  void RemoveKernel();
  // Called when a kernel begins its part of a run, and when it has launched it. A capture that lacks a part belongs to
  // a run that failed.
  void BeginPart() const;
  void EndPart();

 private:
  DeviceState& device_;
  const std::shared_ptr<SessionRuns> runs_;
  Stream& stream_;
  // Shared by all graphs of the session: they run one at a time, so that each may use the others' memory between runs.
  const PoolId pool_ = NewPoolId();
  mutable std::mutex mutex_;  // onnxruntime may call Captured() at any time
  struct Kept {
    std::unique_ptr<Graph> graph;
    std::string bound;  // see BoundValues
    uint64_t last_used = 0;
  };
  std::map<int, Kept> graphs_;
  uint64_t uses_ = 0;
  std::unique_ptr<Graph> run_;  // the graph being captured
  int run_id_ = kNoGraph;
  size_t kernels_ = 0, parts_ = 0;
};

}  // namespace npu::provider

// Whole runs of a session, captured once and replayed (provider option enable_npu_graph; docs/decisions/0011).
//
// Onnxruntime asks Captured() before each run. If not, it runs the session between BeginRun and EndRun, where launches
// are kept instead of run, and EndRun replays them; else it calls Replay() and nothing else. It runs such a session
// once at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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
  // For callers who never release one: beyond this many the graph that was not used for longest makes room.
  static constexpr size_t kMostGraphs = 64;

  SessionGraphs(DeviceState& device, std::shared_ptr<SessionRuns> runs)
      : device_(device), runs_(std::move(runs)), stream_(runs_->TakeStream()) {}
  ~SessionGraphs();

  // All runs of the session go through it, so that a graph is of one stream.
  Stream& stream() const { return stream_; }

  void BeginRun(int id);
  void EndRun();
  bool capturing() const { return run_ != nullptr; }
  bool Captured(int id) const;
  // Waits, and throws what a launch threw.
  void Replay(int id);
  void Release(int id);  // a graph of that number, if there is one

  // Kernels of the session come, and go, and with the first that goes all graphs go.
  void AddKernel();
  void RemoveKernel();
  // A kernel begins its part of a run, and has launched it. A capture without a part of each is of a run that failed.
  void BeginPart() const;
  void EndPart();

 private:
  DeviceState& device_;
  const std::shared_ptr<SessionRuns> runs_;
  Stream& stream_;
  // Of all graphs of the session: they run one at a time, so that each may use what the others use between runs.
  const PoolId pool_ = NewPoolId();
  mutable std::mutex mutex_;  // onnxruntime asks Captured() at any time
  struct Kept {
    std::unique_ptr<Graph> graph;
    uint64_t last_used = 0;
  };
  std::map<int, Kept> graphs_;
  uint64_t uses_ = 0;
  std::unique_ptr<Graph> run_;  // being captured
  int run_id_ = kNoGraph;
  size_t kernels_ = 0, parts_ = 0;
};

}  // namespace npu::provider

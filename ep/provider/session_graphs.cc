#include "ep/provider/session_graphs.h"

#include <algorithm>
#include <utility>

#include "ep/provider/bound_values.h"
#include "ep/runtime/error.h"

namespace npu::provider {

SessionGraphs::~SessionGraphs() {
  run_.reset();
  graphs_.clear();
}

void SessionGraphs::BeginRun(int id) {
  if (capturing()) device_.AbandonCapture(std::exchange(run_, nullptr));
  if (id == kNoGraph || Captured(id)) return;
  auto graph = std::make_unique<Graph>();
  device_.BeginCapture(*graph, stream_, pool_);
  run_ = std::move(graph);
  run_id_ = id;
  parts_ = 0;
}

void SessionGraphs::EndRun() {
  if (!capturing()) return;
  auto graph = std::exchange(run_, nullptr);
  if (parts_ != kernels_) {
    // The run failed, and onnxruntime has the error.
    device_.AbandonCapture(std::move(graph));
    return;
  }
  device_.EndCapture(*graph, stream_);
  {
    std::lock_guard lock(mutex_);
    graphs_[run_id_].graph = std::move(graph);
    graphs_[run_id_].bound = BoundValues();
    if (graphs_.size() > kMostGraphs) {
      const auto older = [](const auto& a, const auto& b) { return a.second.last_used < b.second.last_used; };
      graphs_[run_id_].last_used = ++uses_;
      graphs_.erase(std::min_element(graphs_.begin(), graphs_.end(), older));
    }
  }
  Replay(run_id_);
}

bool SessionGraphs::Captured(int id) const {
  std::lock_guard lock(mutex_);
  return graphs_.count(id) != 0;
}

void SessionGraphs::Replay(int id) {
  Graph* graph = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = graphs_.find(id);
    NPU_CHECK(found != graphs_.end(), "[graph] expected the number of a captured graph, got ", id);
    CheckSameValues(id, found->second.bound, BoundValues());
    found->second.last_used = ++uses_;
    graph = found->second.graph.get();
  }
  (void)runs_->Enter(stream_);  // the stream is waited for
  graph->Replay(stream_);
  stream_.Synchronize();
}

void SessionGraphs::Release(int id) {
  std::lock_guard lock(mutex_);
  graphs_.erase(id);
}

void SessionGraphs::AddKernel() { ++kernels_; }

void SessionGraphs::RemoveKernel() {
  std::lock_guard lock(mutex_);
  graphs_.clear();
  --kernels_;
}

void SessionGraphs::BeginPart() const {
  NPU_CHECK(!capturing() || device_.CapturesHere(),
            "[graph] expected the nodes of a run on one thread: with enable_npu_graph, leave execution_mode at "
            "ORT_SEQUENTIAL");
}

void SessionGraphs::EndPart() { ++parts_; }

}  // namespace npu::provider

#include "ep/runtime/graph_replay.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <new>

#include "ep/runtime/backend.h"
#include "ep/runtime/error.h"
#include "ep/runtime/launch_trace.h"
#include "ep/runtime/log.h"
#include "ep/runtime/spin.h"

namespace npu {
namespace {

// Branches wait for each other about as long as a small kernel takes.
constexpr std::chrono::microseconds kBranchSpin{20};

Status NodeFailure(const char* op, const std::string& message) {
  const std::string prefix = Concat("[", op, "] ");
  return MakeFailure("[graph] " + (message.starts_with(prefix) ? message : prefix + message));
}

// The failure of a replay; if several branches fail, that of the node that was captured first.
class Outcome {
 public:
  Status status() const {
    if (!failed_.load(std::memory_order_acquire)) [[likely]]
      return nullptr;
    std::lock_guard lock(mutex_);
    return status_;
  }
  void Fail(size_t node, Status status) {
    std::lock_guard lock(mutex_);
    if (node >= node_) return;
    node_ = node;
    status_ = std::move(status);
    failed_.store(true, std::memory_order_release);
  }

 private:
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  size_t node_ = std::numeric_limits<size_t>::max();
  Status status_;
};

// Runs nodes one after the other.
class NodeRunner {
 public:
  NodeRunner(GraphNodes& graph, Outcome& outcome) : graph_(graph), outcome_(outcome) {}

  void Run(size_t index) {
    GraphNode& node = graph_.nodes[index];
    const Status failed = outcome_.status();
    if (failed != nullptr && !node.always) return;
    const LaunchTrace::Part part(node.op);
    try {
      if (node.always) {
        node.always(failed);
      } else if (node.of_host) {
        TaskOf(node)();
      } else {
        graph_.backend.RunCaptured(TaskOf(node));
      }
    } catch (const FailedBefore& e) {
      outcome_.Fail(index, e.status());
    } catch (const std::bad_alloc&) {
      outcome_.Fail(index, NodeFailure(node.op, "out of host memory"));
    } catch (const std::exception& e) {
      outcome_.Fail(index, NodeFailure(node.op, e.what()));
    } catch (...) {
      outcome_.Fail(index, NodeFailure(node.op, "unknown exception"));
    }
  }

 private:
  // A group's tasks are read when the first of them runs: while a replay blocks before that, they can be updated.
  Task& TaskOf(GraphNode& node) {
    if (node.group < 0) return node.task;
    if (node.group != group_) {
      group_tasks_ = graph_.TasksOf(static_cast<size_t>(node.group));
      group_ = node.group;
    }
    return group_tasks_->tasks[node.place];
  }

  GraphNodes& graph_;
  Outcome& outcome_;
  std::ptrdiff_t group_ = -1;
  std::shared_ptr<TaskGroup::Tasks> group_tasks_;
};

// One replay whose branches run concurrently. Helpers share it; the graph outlives the last of them.
class BranchesRun {
 public:
  explicit BranchesRun(GraphNodes& graph)
      : graph_(graph), trace_(LaunchTrace::Running()), done_(graph.branches.size()), left_(graph.branches.size() - 1) {}

  // The replaying stream's part. False if the helpers could not be launched; then nothing has run.
  static bool Run(GraphNodes& graph, Outcome& outcome) {
    const auto run = std::make_shared<BranchesRun>(graph);
    try {
      for (size_t branch = 1; branch < graph.branches.size(); ++branch)
        graph.backend.LaunchAlways(graph.helpers[branch - 1], "graph_branch",
                                   [run, branch](const Status&) { run->Help(branch); });
    } catch (const std::exception& e) {
      run->Set(run->start_, kNever);
      NPU_LOG(kWarning, "graph: the branches run in order, for want of helper streams: ", e.what());
      return false;
    }
    run->Set(run->start_, kNow);
    run->RunBranch(0);
    run->WaitUntil([&] { return run->left_.load() == 0; });
    if (Status status = run->outcome_.status()) outcome.Fail(0, std::move(status));
    return true;
  }

 private:
  static constexpr size_t kNotYet = 0, kNow = 1, kNever = 2;

  void Help(size_t branch) {
    WaitUntil([&] { return start_.load() != kNotYet; });
    if (start_.load() == kNever) return;
    {
      const LaunchTrace::Sharing parts(trace_);
      RunBranch(branch);
    }
    left_.fetch_sub(1);
    Wake();
  }

  // Goes through all steps even after a failure, because other branches wait for them.
  void RunBranch(size_t branch) {
    NodeRunner runner(graph_, outcome_);
    const std::vector<GraphBranch::Step>& steps = graph_.branches[branch].steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      for (const GraphBranch::Need& need : steps[i].needs)
        WaitUntil([&] { return done_[need.branch].load() >= need.steps; });
      runner.Run(steps[i].node);
      if (steps[i].awaited) Set(done_[branch], i + 1);
    }
  }

  // A waiter increments `waiters_` before its last check, and a writer reads `waiters_` after changing a value: these
  // accesses are sequentially consistent, so one of the two sees the other.
  template <class Ready>
  void WaitUntil(Ready ready) {
    if (SpinUntil(ready, kBranchSpin)) return;
    std::unique_lock lock(mutex_);
    waiters_.fetch_add(1);
    changed_.wait(lock, ready);
    waiters_.fetch_sub(1);
  }
  void Set(std::atomic<size_t>& value, size_t to) {
    value.store(to);
    Wake();
  }
  void Wake() {
    if (waiters_.load() == 0) return;
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  GraphNodes& graph_;
  LaunchSpan* const trace_;
  Outcome outcome_;
  std::atomic<size_t> start_{kNotYet};
  std::vector<std::atomic<size_t>> done_;  // completed steps of each branch, updated at awaited steps
  std::atomic<size_t> left_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> waiters_{0};
};

}  // namespace

std::vector<GraphBranch> PlanBranches(const std::vector<GraphNode>& nodes) {
  bool in_order = true;
  for (size_t i = 1; i < nodes.size() && in_order; ++i)
    in_order = std::binary_search(nodes[i].after.begin(), nodes[i].after.end(), i - 1);
  if (in_order) return {};
  std::vector<GraphBranch> branches;
  std::map<uint64_t, size_t> branch_of;           // by stream
  std::vector<std::pair<size_t, size_t>> places;  // of each node: its branch, its step
  for (size_t i = 0; i < nodes.size(); ++i) {
    const size_t branch = branch_of.try_emplace(nodes[i].stream, branches.size()).first->second;
    if (branch == branches.size()) branches.push_back({.device = nodes[i].device});
    GraphBranch::Step step{.node = i};
    for (const size_t before : nodes[i].after) {
      const auto& [other, place] = places[before];
      if (other == branch) continue;
      step.needs.push_back({other, place + 1});
      branches[other].steps[place].awaited = true;
    }
    places.emplace_back(branch, branches[branch].steps.size());
    branches[branch].steps.push_back(std::move(step));
  }
  return branches;
}

ReplayDraws TakeDraws(GraphNodes& graph) {
  std::lock_guard lock(graph.draws_mutex);
  ReplayDraws taken;
  for (const GraphDraws& draws : graph.draws) taken.emplace_back(draws.origin, draws.source->Take(draws.counters));
  return taken;
}

void PrepareReplay(GraphNodes& graph) {
  if (graph.branches.empty()) return;
  std::lock_guard lock(graph.helpers_mutex);
  graph.helpers.reserve(graph.branches.size() - 1);
  while (graph.helpers.size() + 1 < graph.branches.size())
    graph.helpers.push_back(
        graph.backend.CreateStream(graph.branches[graph.helpers.size() + 1].device, /*priority=*/0));
}

void RunReplay(GraphNodes& graph, const ReplayDraws& draws) {
  std::lock_guard replay(graph.replay_mutex);
  for (const auto& [origin, state] : draws) origin->Set(state);
  Outcome outcome;
  if (graph.branches.empty() || !BranchesRun::Run(graph, outcome)) {
    NodeRunner runner(graph, outcome);
    for (size_t i = 0; i < graph.nodes.size(); ++i) runner.Run(i);
  }
  ThrowIfFailed(outcome.status());
}

void SkipReplay(GraphNodes& graph, const Status& status) {
  Outcome outcome;
  outcome.Fail(0, status);
  NodeRunner runner(graph, outcome);
  for (size_t i = 0; i < graph.nodes.size(); ++i) runner.Run(i);
}

}  // namespace npu

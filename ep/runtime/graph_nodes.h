// What a capture leaves behind: its launches, and all that they need as long as somebody may replay them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ep/runtime/allocator_snapshot.h"
#include "ep/runtime/random.h"
#include "ep/runtime/status.h"
#include "ep/runtime/task.h"

namespace npu {

class Backend;
class BackendStream;
class Device;

PoolId NewPoolId();

// A hold on a private pool, on each device whose streams take memory from it.
class PoolHold {
 public:
  explicit PoolHold(PoolId id) : id_(id) {}
  ~PoolHold();
  PoolHold(const PoolHold&) = delete;
  PoolHold& operator=(const PoolHold&) = delete;

  PoolId id() const { return id_; }
  void Retain(Device& device);  // once a device

 private:
  const PoolId id_;
  std::vector<Device*> devices_;
};

using KeptObjects = std::vector<std::shared_ptr<const void>>;

struct GraphNode {
  const char* op = "";
  Task task{};                                  // empty: `always`, or a task group has it
  bool of_host = false;                         // the task runs as host code, not as a launch
  std::function<void(const Status&)> always{};  // runs behind a node that failed, too
  uint64_t stream = 0;
  int device = 0;
  std::vector<size_t> after{};  // nodes that come before it in stream or event order
  std::ptrdiff_t group = -1;    // its task group, and its place there
  size_t place = 0;
};

// Launches of one stream that updates replace, all at once: a replay that runs meanwhile goes on with those it has
// begun with.
struct TaskGroup {
  struct Tasks {
    KeptObjects kept;  // what they use
    std::vector<Task> tasks;
  };

  Device* device = nullptr;
  uint64_t stream = 0;
  std::vector<size_t> nodes;
  std::shared_ptr<Tasks> tasks;  // guarded by the graph's groups_mutex
};

// What a graph draws from one generator at each replay.
struct GraphDraws {
  std::shared_ptr<RandomSource> source;
  std::shared_ptr<ReplayOrigin> origin;
  uint64_t counters = 0;
};

// The nodes of one captured stream, in its order: see graph_replay.h.
struct GraphBranch {
  struct Need {
    size_t branch, steps;  // how many steps of that branch come before
  };
  struct Step {
    size_t node = 0;
    std::vector<Need> needs{};
    bool awaited = false;  // by a step of another branch
  };
  int device = 0;
  std::vector<Step> steps{};
};

// Shared by the graph and its replays in flight. Members go in reverse order: tasks first, then what they use, and the
// memory at last.
struct GraphNodes {
  GraphNodes(Backend& b, PoolId id) : backend(b), pool(id) {}
  ~GraphNodes();
  GraphNodes(const GraphNodes&) = delete;
  GraphNodes& operator=(const GraphNodes&) = delete;

  // Where updates of a group take memory from: what the capture's own nodes, and groups that may run beside it, use
  // meanwhile is not theirs.
  PoolHold& UpdatePool(const TaskGroup& group);
  std::shared_ptr<TaskGroup::Tasks> TasksOf(size_t group);

  Backend& backend;
  PoolHold pool;
  std::map<uint64_t, PoolHold> update_pools;  // by captured stream; guarded by groups_mutex
  KeptObjects kept;
  std::vector<GraphNode> nodes;

  std::mutex groups_mutex;  // held for a moment, never while a task runs
  std::deque<TaskGroup> groups;

  std::mutex draws_mutex;
  std::vector<GraphDraws> draws;

  std::mutex replay_mutex;  // held while a replay runs them
  bool any_always = false;
  std::vector<GraphBranch> branches;  // empty: the nodes run in order
  std::mutex helpers_mutex;
  std::vector<BackendStream*> helpers;  // of every branch but the first, once it was replayed
};

}  // namespace npu

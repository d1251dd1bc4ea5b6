// The result of a capture: its launches, and everything they need for as long as they may be replayed.
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

// Retains a private pool, on each device whose streams allocate from it.
class PoolHold {
 public:
  explicit PoolHold(PoolId id) : id_(id) {}
  ~PoolHold();
  PoolHold(const PoolHold&) = delete;
  PoolHold& operator=(const PoolHold&) = delete;

  PoolId id() const { return id_; }
  void Retain(Device& device);  // once per device

 private:
  const PoolId id_;
  std::vector<Device*> devices_;
};

using KeptObjects = std::vector<std::shared_ptr<const void>>;

struct GraphNode {
  const char* op = "";
  Task task{};                                  // empty: `always` is set, or a task group holds it
  bool of_host = false;                         // the task runs as host code, not as a launch
  std::function<void(const Status&)> always{};  // runs even behind a failed node
  uint64_t stream = 0;
  int device = 0;
  std::vector<size_t> after{};  // nodes that come before it in stream or event order
  std::ptrdiff_t group = -1;    // its task group (-1: none), and its position there
  size_t place = 0;
};

// Launches of one stream that updates replace as a whole: a replay in flight continues with those it began with.
struct TaskGroup {
  struct Tasks {
    KeptObjects kept;  // objects that they use
    std::vector<Task> tasks;
  };

  Device* device = nullptr;
  uint64_t stream = 0;
  std::vector<size_t> nodes;
  std::shared_ptr<Tasks> tasks;  // guarded by the graph's groups_mutex
};

// Draws of a graph from one generator at each replay.
struct GraphDraws {
  std::shared_ptr<RandomSource> source;
  std::shared_ptr<ReplayOrigin> origin;
  uint64_t counters = 0;
};

// The nodes of one captured stream, in its order: see graph_replay.h.
struct GraphBranch {
  struct Need {
    size_t branch, steps;  // number of steps of that branch that come before
  };
  struct Step {
    size_t node = 0;
    std::vector<Need> needs{};
    bool awaited = false;  // by a step of another branch
  };
  int device = 0;
  std::vector<Step> steps{};
};

// Shared by the graph and its replays in flight. Members are destroyed in reverse order: tasks, then the objects that
// they use, then the memory.
struct GraphNodes {
  GraphNodes(Backend& b, PoolId id) : backend(b), pool(id) {}
  ~GraphNodes();
  GraphNodes(const GraphNodes&) = delete;
  GraphNodes& operator=(const GraphNodes&) = delete;

  // The pool from which updates of a group allocate. It is separate, because the capture's own nodes and groups that
  // may run concurrently use their memory meanwhile.
  PoolHold& UpdatePool(const TaskGroup& group);
  std::shared_ptr<TaskGroup::Tasks> TasksOf(size_t group);

  Backend& backend;
  PoolHold pool;
  std::map<uint64_t, PoolHold> update_pools;  // by captured stream; guarded by groups_mutex
  KeptObjects kept;
  std::vector<GraphNode> nodes;

  std::mutex groups_mutex;  // never held while a task runs
  std::deque<TaskGroup> groups;

  std::mutex draws_mutex;
  std::vector<GraphDraws> draws;

  std::mutex replay_mutex;  // held during a replay
  bool any_always = false;
  std::vector<GraphBranch> branches;  // empty: the nodes run in order
  std::mutex helpers_mutex;
  std::vector<BackendStream*> helpers;  // for every branch but the first; created by the first replay
};

}  // namespace npu

// What keeps launches instead of running them, while a graph is captured or updated. Stream and Event ask it before
// they ask the backend; without a capture in the process that is one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ep/runtime/graph.h"
#include "ep/runtime/random.h"

namespace npu {

struct GraphNode {
  const char* op = "";
  Task task{};
  uint64_t stream = 0;
  std::vector<size_t> after{};                  // nodes that come before it in stream or event order
  std::function<void(const Status&)> always{};  // instead of a task: runs behind a node that failed, too
};

// What a graph draws from one generator at each replay.
struct GraphDraws {
  std::shared_ptr<RandomSource> source;
  std::shared_ptr<ReplayOrigin> origin;
  uint64_t counters = 0;
};

// Shared by the graph and its replays in flight.
struct GraphNodes {
  GraphNodes() = default;
  ~GraphNodes();
  GraphNodes(const GraphNodes&) = delete;
  GraphNodes& operator=(const GraphNodes&) = delete;

  // Where updates take memory from: what the capture's own nodes use meanwhile is not theirs.
  PoolId UpdatePool(Device& device);

  std::mutex replay_mutex;  // held while a replay runs them
  std::mutex mutex;         // held while one runs, or an update replaces one
  std::vector<GraphNode> nodes;
  std::mutex draws_mutex;  // of its own: a replay begins while an earlier one runs
  std::vector<GraphDraws> draws;
  std::vector<std::shared_ptr<const RandomPosition>> seeds;  // kept for the numbers that name them
  std::vector<std::shared_ptr<const void>> kept;             // what its tasks use and nobody else may own any more

 private:
  Device* update_device_ = nullptr;  // null: no update took place
  PoolId update_pool_;
};

PoolId NewPoolId();

class Recording : public std::enable_shared_from_this<Recording> {
 public:
  // How many launches of each stream are known to come before.
  using Clock = std::map<uint64_t, size_t>;

  static bool Any() { return open_count_.load(std::memory_order_relaxed) > 0; }
  static std::shared_ptr<Recording> Of(const Stream& stream);

  // What Stream and Event do while Any(). True: handled here. A task that replaces another leaves that one in `task`.
  static bool KeepLaunch(const Stream& stream, const char* op, Task& task);
  static bool KeepLaunchAlways(const Stream& stream, const char* op, std::function<void(const Status&)>& task);
  static bool KeepRecord(const Event& event, const Stream& stream);
  static bool KeepWait(const Stream& stream, const Event& event);
  static void Forget(const Event& event);
  // Keeps `object` alive with the graph that is being captured on `stream`; false when none is.
  static bool Keep(const Stream& stream, std::shared_ptr<const void> object);
  // A position relative to where the generator stands when a replay begins.
  RandomPosition KeepDraw(const std::shared_ptr<RandomSource>& source, uint64_t counters);
  void KeepSeed(std::shared_ptr<const RandomPosition> position);
  // Throw when a capture makes the call illegal, and spoil the capture.
  static void CheckWaitFor(const Stream& stream, const char* what);
  static void CheckWaitFor(const Event& event, const char* what);
  static void CheckWaitFor(const Device& device, const char* what);

  static std::shared_ptr<Recording> BeginCapture(Stream& origin, CaptureMode mode);
  static std::shared_ptr<Recording> BeginUpdate(Stream& stream, const GraphTaskGroup& group);
  // Closes it, unless `current` is another stream; throws what made it invalid.
  std::shared_ptr<GraphNodes> End(const Stream& current);
  void Abandon();
  bool closed() const;
  bool updates() const { return updating_; }
  PoolId update_pool() const { return update_pool_; }
  bool Contains(const Stream& stream) const;
  void BeginGroup();
  GraphTaskGroup EndGroup();

 private:
  void Add(const Stream& stream, GraphNode node);
  void Replace(const char* op, Task& task);
  void Spoil(const std::string& why);
  void Close();
  std::string UnjoinedStream() const;

  static std::atomic<int> open_count_;

  std::thread::id thread_;
  CaptureMode mode_ = CaptureMode::kGlobal;
  const Stream* origin_ = nullptr;
  bool updating_ = false, closed_ = false;
  size_t next_ = 0, end_ = 0;  // of an update
  PoolId update_pool_;
  std::ptrdiff_t group_begin_ = -1;
  std::shared_ptr<GraphNodes> nodes_;
  std::string spoiled_;
  std::map<uint64_t, Clock> clocks_;                       // by stream that takes part
  std::unordered_map<const Event*, Clock> events_;         // recorded in this capture
  std::map<uint64_t, std::vector<size_t>> pending_after_;  // by stream: what its next node comes after
  std::map<uint64_t, size_t> last_node_;                   // by stream
};

}  // namespace npu

// Keeps launches instead of running them while a graph is captured or updated. Stream and Event consult it before the
// backend; without a capture in the process, that is one relaxed load.
//
// One lock guards both whether a stream is captured and what its capture holds: a launch from another thread that races
// with the begin or the end of a capture is either captured or run.
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
#include "ep/runtime/graph_nodes.h"

namespace npu {

class Recording : public std::enable_shared_from_this<Recording> {
 public:
  static bool Any() { return open_count_.load(std::memory_order_relaxed) > 0; }
  static bool Captures(const Stream& stream);

  // Called by Stream and Event while Any(). True: handled here, not by the backend.
  static bool KeepLaunch(const Stream& stream, const char* op, Task& task, bool of_host);
  static bool KeepLaunchAlways(const Stream& stream, const char* op, std::function<void(const Status&)>& task);
  static bool KeepRecord(const Event& event, const Stream& stream);
  static bool KeepWait(const Stream& stream, const Event& event);
  static void Forget(const Event& event);
  // Keeps `object` alive with the graph that is being captured on `stream`; false when none is.
  static bool Keep(const Stream& stream, std::shared_ptr<const void> object);
  // Sets `position` relative to the generator's state when a replay begins; false when `stream` is not captured.
  static bool KeepDraw(const Stream& stream, const std::shared_ptr<RandomSource>& source, uint64_t counters,
                       RandomPosition& position);
  // Counters that a replay draws from `source`, as captured so far; the next draw follows them. False: not captured.
  static bool Drawn(const Stream& stream, const std::shared_ptr<RandomSource>& source, uint64_t& counters);
  static bool SetDrawn(const Stream& stream, const std::shared_ptr<RandomSource>& source, uint64_t counters);
  // Throw if a capture makes the call illegal, and then invalidate the capture.
  static void Check(const Stream& stream, const char* what);
  static void CheckWaitFor(const Stream& stream, const char* what);
  static void CheckWaitFor(const Event& event, const char* what);
  static void CheckWaitFor(const Device& device, const char* what);

  static std::shared_ptr<Recording> BeginCapture(Stream& origin, PoolId pool, CaptureMode mode);
  static void BeginGroup(const Stream& stream);
  static GraphTaskGroup EndGroup(const Stream& stream);
  static void BeginUpdate(Stream& stream, const GraphTaskGroup& group);
  static void EndUpdate(const Stream& stream);
  // Closes the recording, unless `current` is not the stream it began on; throws what made it invalid.
  std::shared_ptr<GraphNodes> End(const Stream& current);
  void Abandon();
  bool closed() const;

 private:
  // Number of launches of each stream that are known to come before.
  using Clock = std::map<uint64_t, size_t>;
  struct Update {
    size_t group, next = 0;
    std::shared_ptr<TaskGroup::Tasks> tasks;  // the replacements
  };

  Recording(Stream& origin, std::shared_ptr<GraphNodes> nodes, PoolId pool);

  // Called with the lock held, like all below except Cover, Uncover and Open.
  static Recording* Find(const Stream& stream);
  static Recording* FindCapture(const Stream& stream);
  static bool VisitDraws(const Stream& stream, const std::shared_ptr<RandomSource>& source,
                         const std::function<void(GraphDraws&)>& visit);
  static Recording* FindRecorded(const Event& event);
  // From now on, allocations for participating streams of `device` come from the pool.
  void Cover(Device& device);
  void Uncover();
  void Open(const char* expectation);
  void Add(const Stream& stream, GraphNode node);
  void Replace(const char* op, Task& task);
  void Join(const Stream& stream, const Clock& recorded);
  void Spoil(const std::string& why);
  [[noreturn]] void Refuse(const std::string& why);
  std::shared_ptr<GraphNodes> Close();
  std::string WhyInvalid() const;
  std::string UnjoinedStream() const;

  static std::atomic<int> open_count_;

  const std::thread::id thread_ = std::this_thread::get_id();
  const uint64_t origin_;
  CaptureMode mode_ = CaptureMode::kGlobal;
  std::unique_ptr<Update> update_;  // null: a capture
  std::shared_ptr<GraphNodes> nodes_;
  bool closed_ = false;
  std::string spoiled_;
  std::map<uint64_t, Clock> clocks_;                       // by participating stream
  std::unordered_map<const Event*, Clock> events_;         // recorded in this capture
  std::map<uint64_t, std::vector<size_t>> pending_after_;  // by stream: nodes that its next node comes after
  std::map<uint64_t, size_t> last_node_;                   // by stream
  std::map<uint64_t, std::vector<size_t>> open_groups_;    // by stream

  const PoolId pool_;
  std::mutex cover_mutex_;        // taken before the allocators' locks and the recordings' lock
  std::vector<Device*> covered_;  // written with both locks held
};

}  // namespace npu

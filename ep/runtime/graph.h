// A stream's launches, captured once and replayed as one submission, at the addresses they were captured with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "ep/runtime/allocator_snapshot.h"
#include "ep/runtime/stream.h"

namespace npu {

// Whose unsafe calls (a wait for the whole device) fail while a capture is open: everybody's, the capturing
// thread's, nobody's.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };
CaptureMode ParseCaptureMode(const std::string& name);

struct GraphNodes;
class Recording;

// Launches between the two, to be replaced later: see Graph::BeginUpdate.
struct GraphTaskGroup {
  std::weak_ptr<GraphNodes> nodes;
  size_t begin = 0, end = 0;
};

class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // From now on what is launched on `stream`, and on streams that wait for its events, is kept instead of run; what
  // is allocated for them comes from `pool` ({0, 0}: one of the graph's own). Throws Error(kInvalidArgument) on a
  // default stream, a stream that is captured already, and a graph that holds a capture.
  void CaptureBegin(Stream& stream, PoolId pool = {}, CaptureMode mode = CaptureMode::kGlobal);
  // `current` must be the stream of CaptureBegin. Throws when an illegal call happened meanwhile, or when a stream
  // that joined the capture was not joined back; the graph is then empty.
  void CaptureEnd(Stream& current);
  // Kernels whose launches were captured must outlive it. The caller orders replays that share memory.
  void Replay(Stream& stream);
  void Reset();  // waits for replays; the pool goes unless somebody else retains it
  bool captured() const { return nodes_ != nullptr; }
  PoolId pool() const;
  size_t size() const;
  std::string Json() const;  // nodes, streams, dependencies, pool

  static bool IsCapturing(const Stream& stream);
  // A group of launches on a capturing stream.
  static void BeginGroup(Stream& stream);
  static GraphTaskGroup EndGroup(Stream& stream);
  // Launches on `stream`, which is not captured, now replace those of the group: the same operators in the same order.
  static void BeginUpdate(Stream& stream, const GraphTaskGroup& group);
  static void EndUpdate(Stream& stream);

 private:
  std::shared_ptr<Recording> recording_;
  std::shared_ptr<GraphNodes> nodes_;
  std::map<uint64_t, std::unique_ptr<Event>> replayed_;  // by stream: its last replay
  PoolId pool_;
  Device* device_ = nullptr;
};

}  // namespace npu

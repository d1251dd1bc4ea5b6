// A stream's launches, captured once and replayed as one submission, at the addresses they were captured with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ep/runtime/allocator_snapshot.h"
#include "ep/runtime/stream.h"

namespace npu {

// Which threads' unsafe calls (a wait for the whole device) fail while a capture is open: all threads', only the
// capturing thread's, none.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };
CaptureMode ParseCaptureMode(const std::string& name);

struct GraphNodes;
class Recording;

// Launches between BeginGroup and EndGroup, which can be replaced later: see Graph::BeginUpdate.
struct GraphTaskGroup {
  std::weak_ptr<GraphNodes> nodes;
  size_t index = 0, size = 0;
};

// Destroying or resetting it does not wait: its resources are released when its replays in flight are done.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // From now on, launches on `stream`, and on streams that wait for its events, are kept instead of run; their
  // allocations come from `pool` ({0, 0}: one of the graph's own), on every participating device. Throws
  // Error(kInvalidArgument) on a default stream, a stream that is captured already, and a graph that holds a capture.
  void CaptureBegin(Stream& stream, PoolId pool = {}, CaptureMode mode = CaptureMode::kGlobal);
  // `current` must be the stream of CaptureBegin. Throws when an illegal call happened meanwhile, or when a stream
  // that joined the capture was not joined back; the graph is then empty.
  void CaptureEnd(Stream& current);
  // Kernels whose launches were captured must outlive the graph, unless it holds them (Recording::Keep). The replays of
  // one graph run one at a time; the caller orders those of graphs that share memory.
  void Replay(Stream& stream);
  void Reset();  // releases the pool
  bool captured() const { return nodes() != nullptr; }
  PoolId pool() const;
  size_t size() const;
  std::string Json() const;  // nodes, streams, dependencies, pool

  static bool IsCapturing(const Stream& stream);
  // For work that a replay could not repeat: throws and invalidates the capture if `stream` is capturing.
  static void RefuseInCapture(const Stream& stream, const char* what);
  // A group of launches on a capturing stream.
  static void BeginGroup(Stream& stream);
  static GraphTaskGroup EndGroup(Stream& stream);
  // Until EndUpdate, launches on `stream`, which is not captured, are collected to replace those of the group: the same
  // operators in the same order. EndUpdate replaces all of them, or none if it throws. A replay in flight may be before
  // or behind the group.
  static void BeginUpdate(Stream& stream, const GraphTaskGroup& group);
  static void EndUpdate(Stream& stream);

 private:
  std::shared_ptr<GraphNodes> nodes() const;

  mutable std::mutex mutex_;  // guards the members below; never held during a launch or a wait
  std::shared_ptr<Recording> recording_;
  std::shared_ptr<GraphNodes> nodes_;
  std::map<uint64_t, BackendEvent*> replayed_;  // by stream: its last replay
  Device* device_ = nullptr;
};

}  // namespace npu

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

// Whose unsafe calls (a wait for the whole device) fail while a capture is open: everybody's, the capturing
// thread's, nobody's.
enum class CaptureMode { kGlobal, kThreadLocal, kRelaxed };
CaptureMode ParseCaptureMode(const std::string& name);

struct GraphNodes;
class Recording;

// Launches between the two, to be replaced later: see Graph::BeginUpdate.
struct GraphTaskGroup {
  std::weak_ptr<GraphNodes> nodes;
  size_t index = 0, size = 0;
};

// Destroyed or reset, it keeps nobody waiting: what it holds goes when its replays in flight are done.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // From now on what is launched on `stream`, and on streams that wait for its events, is kept instead of run; what
  // is allocated for them comes from `pool` ({0, 0}: one of the graph's own), on every device that takes part. Throws
  // Error(kInvalidArgument) on a default stream, a stream that is captured already, and a graph that holds a capture.
  void CaptureBegin(Stream& stream, PoolId pool = {}, CaptureMode mode = CaptureMode::kGlobal);
  // `current` must be the stream of CaptureBegin. Throws when an illegal call happened meanwhile, or when a stream
  // that joined the capture was not joined back; the graph is then empty.
  void CaptureEnd(Stream& current);
  // Kernels whose launches were captured must outlive it, unless Recording::Keep says so. The replays of one graph run
  // one at a time; the caller orders those of graphs that share memory.
  void Replay(Stream& stream);
  void Reset();  // the pool goes unless somebody else retains it
  bool captured() const { return nodes() != nullptr; }
  PoolId pool() const;
  size_t size() const;
  std::string Json() const;  // nodes, streams, dependencies, pool

  static bool IsCapturing(const Stream& stream);
  // For what no replay could do again. Throws, and spoils the capture, when `stream` is capturing.
  static void RefuseInCapture(const Stream& stream, const char* what);
  // A group of launches on a capturing stream.
  static void BeginGroup(Stream& stream);
  static GraphTaskGroup EndGroup(Stream& stream);
  // Launches on `stream`, which is not captured, replace those of the group, the same operators in the same order: all
  // at EndUpdate, or none when that throws. A replay in flight may be before or behind the group.
  static void BeginUpdate(Stream& stream, const GraphTaskGroup& group);
  static void EndUpdate(Stream& stream);

 private:
  std::shared_ptr<GraphNodes> nodes() const;

  mutable std::mutex mutex_;  // guards what follows, and is not held while anything is launched or waited for
  std::shared_ptr<Recording> recording_;
  std::shared_ptr<GraphNodes> nodes_;
  std::map<uint64_t, BackendEvent*> replayed_;  // by stream: its last replay
  Device* device_ = nullptr;
};

}  // namespace npu

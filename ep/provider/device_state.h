// One logical device as one factory uses it: memory that ORT asks for without saying on which stream it will be used,
// and work of ORT's outside of runs.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/graph.h"

namespace npu::provider {

class DeviceState {
 public:
  explicit DeviceState(Device& device) : device_(device), host_stream_(device.CreateStream()) {}

  Device& device() const { return device_; }
  // Where work runs that must be done when the call returns: copies without a stream, pre-packing. No run of a session
  // uses it.
  Stream& host_stream() const { return *host_stream_; }

  // `stream` null: usable at once on every stream.
  void* Allocate(size_t bytes, Stream* stream);
  // Memory of a stream goes back in that stream's order. Memory without one (ORT's pattern buffers, initializers,
  // bound values) is held back until every stream of the device has passed: ORT frees a run's pattern buffer before
  // it waits for the run's stream.
  void Free(void* ptr);
  // Allocations without a stream so far, and whether a live one that begins at `ptr` came after so many.
  uint64_t allocations();
  bool AllocatedSince(const void* ptr, uint64_t allocations);
  // Waits for what this thread has enqueued: on its current stream, and in runs that it did not wait for. Throws what
  // failed of it.
  void WaitForCaller();

  // From now on the launches on `stream` are the graph's, and so is memory that this thread asks for without a stream:
  // it comes from `pool`.
  void BeginCapture(Graph& graph, Stream& stream, PoolId pool);
  // Throws what made the capture invalid; it is over in any case. Memory that is still in use is the graph's as long as
  // it is there, also when the user has freed it: its replays write what they return there, and no other graph of the
  // pool may get it.
  void EndCapture(Graph& graph, Stream& stream);
  void AbandonCapture(std::unique_ptr<Graph> graph);
  // Whether this thread captures a graph of this device.
  bool CapturesHere() const;

 private:
  Device& device_;
  std::unique_ptr<Stream> host_stream_;
  std::mutex mutex_;
  std::unordered_map<const void*, uint64_t> streamless_;  // the number of its allocation
  uint64_t allocations_ = 0;                              // without a stream
  // Memory of captures that somebody uses.
  struct Captured {
    const Stream* stream;
    std::shared_ptr<const void> held;  // once it outlived its capture: by the graph, too
  };
  std::unordered_map<const void*, Captured> captured_;
};

}  // namespace npu::provider

// One logical device as used by one factory: memory that ORT requests without a stream, and work of ORT's outside of
// runs.
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
  // For work that must be done when the call returns: copies without a stream, pre-packing. No run of a session uses
  // it.
  Stream& host_stream() const { return *host_stream_; }

  // `stream` null: usable immediately on every stream.
  void* Allocate(size_t bytes, Stream* stream);
  // Memory of a stream is freed in that stream's order. Memory without one (ORT's pattern buffers, initializers, bound
  // values) is kept until every stream of the device has passed: ORT frees a run's pattern buffer before it waits for
  // the run's stream.
  void Free(void* ptr);
  // The number of allocations without a stream so far, and whether a live one that begins at `ptr` came after that
  // many.
  uint64_t allocations();
  bool AllocatedSince(const void* ptr, uint64_t allocations);
  // Waits for the work that this thread has enqueued, on its current stream and in runs that it did not wait for.
  // Throws the failures of that work.
  void WaitForCaller();

  // From now on, launches on `stream` are captured in `graph`, and memory that this thread allocates without a stream
  // comes from `pool`.
  void BeginCapture(Graph& graph, Stream& stream, PoolId pool);
  // Ends the capture; throws what made it invalid. The graph keeps memory that is still in use as long as it exists,
  // even if the user has freed it: its replays write their outputs there, and no other graph of the pool may get it.
  void EndCapture(Graph& graph, Stream& stream);
  void AbandonCapture(std::unique_ptr<Graph> graph);
  // Whether this thread captures a graph of this device.
  bool CapturesHere() const;

 private:
  Device& device_;
  std::unique_ptr<Stream> host_stream_;
  std::mutex mutex_;
  std::unordered_map<const void*, uint64_t> streamless_;  // sequence number of its allocation
  uint64_t allocations_ = 0;                              // without a stream
  // Memory of captures that is in use.
  struct Captured {
    const Stream* stream;
    std::shared_ptr<const void> held;  // set when it outlives its capture; shared with the graph
  };
  std::unordered_map<const void*, Captured> captured_;
};

}  // namespace npu::provider

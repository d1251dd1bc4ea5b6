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
  explicit DeviceState(Device& device) : device_(device) {}

  Device& device() const { return device_; }
  // A stream for work that must be done when the call returns, such as pre-packing. No other thread uses it meanwhile:
  // sessions that are created at the same time would receive each other's failures, and memory that is free in the
  // order of the work, but not yet for others.
  class OwnStream {
   public:
    explicit OwnStream(DeviceState& device) : device_(device), stream_(device.TakeStream()) {}
    ~OwnStream() { device_.GiveStream(stream_); }
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    Stream& operator*() const { return stream_; }

   private:
    DeviceState& device_;
    Stream& stream_;
  };
  // Lets every stream take the memory that such work and allocations without a stream have freed.
  void ShareFreeBlocks();

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
  Stream& TakeStream();
  void GiveStream(Stream& stream);

  Device& device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Stream>> own_streams_;
  std::vector<Stream*> idle_streams_;                     // of these, the last used at the back; has room for all
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

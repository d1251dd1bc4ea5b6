// The process's one runtime: devices, their default streams and allocators.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ep/runtime/allocator.h"
#include "ep/runtime/backend.h"
#include "ep/runtime/stream.h"

namespace npu {

class Device {
 public:
  Device(Backend& backend, int index, size_t memory_limit, AllocatorSettings settings = {});
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int index() const { return index_; }
  Backend& backend() const { return backend_; }
  const DeviceProperties& properties() const { return properties_; }
  CachingAllocator& allocator() { return *allocator_; }
  Stream& default_stream() { return *default_stream_; }
  std::unique_ptr<Stream> CreateStream(int priority = 0, StreamOwner owner = StreamOwner::kThreads);
  // The live stream of that id, or at that address; null when there is none.
  Stream* FindStream(uint64_t id) const;
  Stream* FindStream(const void* address) const;
  // Records that every busy stream may use the memory at `address`: see CachingAllocator::RecordStream.
  void RecordBusyStreams(const void* address);
  // Waits for every stream of the device; throws Error(kDeviceError) with the failures of all of them.
  void Synchronize();
  // Drops what is queued on every stream and refuses new work until Restart().
  void Stop();
  void Restart();
  bool stopped() const { return stopped_.load(std::memory_order_relaxed); }

 private:
  friend class Stream;
  struct StreamSet;  // the live streams, for Synchronize
  // To be called when the stream with this id is destroyed: any device of its backend may have lent memory to it.
  static void ForgetStream(const Backend& backend, uint64_t id);
  Backend& backend_;
  int index_;
  DeviceProperties properties_;
  std::unique_ptr<CachingAllocator> allocator_;
  std::unique_ptr<StreamSet> streams_;
  std::unique_ptr<Stream> default_stream_;
  std::atomic<bool> stopped_{false};
};

class Runtime {
 public:
  // Built at first use from the environment (ORT_NPU_*). Throws Error(kInvalidArgument) naming the variable when one of
  // them is invalid; a later call tries again.
  static Runtime& Instance();

  int device_count() const { return static_cast<int>(devices_.size()); }
  Device& device(int index);  // throws "invalid device ordinal"
  Backend& backend() { return *backend_; }

 private:
  Runtime();
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace npu

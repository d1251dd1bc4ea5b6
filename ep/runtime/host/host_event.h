// Events of the host backend.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "ep/runtime/backend.h"

namespace npu {

// One point in a stream's order. It fires once; whoever waits holds a reference, so the event that
// recorded it may be recorded again or destroyed at any time.
class HostMarker {
 public:
  void Fire();
  bool fired() const { return fired_.load(std::memory_order_acquire) != 0; }
  void Wait() const;
  int64_t timestamp_ns() const { return timestamp_ns_; }  // once fired

 private:
  std::atomic<uint32_t> fired_{0};
  int64_t timestamp_ns_ = -1;
};

class HostEvent final : public BackendEvent {
 public:
  std::shared_ptr<HostMarker> marker() const;  // of the last record; null when never recorded
  void set_marker(std::shared_ptr<HostMarker> marker);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<HostMarker> marker_;
};

}  // namespace npu

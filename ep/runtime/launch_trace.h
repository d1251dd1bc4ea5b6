// When each launch ran, for profiles. Off, a launch pays one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "ep/runtime/task.h"

namespace npu {

struct LaunchSpan {
  std::string op;
  int device = 0;
  uint64_t stream = 0;               // Stream::id()
  int64_t begin_ns = 0, end_ns = 0;  // of the steady clock, as Event::TimestampNs
};

class LaunchTrace {
 public:
  static bool On() { return on_.load(std::memory_order_relaxed); }
  static void Start();
  // What ran since Start(), in the order in which it ended. Work that is still queued is not in it.
  static std::vector<LaunchSpan> Stop();
  // A task that runs `task` and notes when.
  static Task Timed(const char* op, int device, uint64_t stream, Task task);

 private:
  static std::atomic<bool> on_;
};

}  // namespace npu

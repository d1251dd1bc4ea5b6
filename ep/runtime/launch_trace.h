// Records when each launch ran, for profiles. When off, a launch pays one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ep/runtime/task.h"

namespace npu {

struct LaunchSpan {
  std::string op;
  int device = 0;
  uint64_t stream = 0;                              // Stream::id()
  int thread = 0;                                   // system id of the launching thread
  uint64_t cause = 0;                               // what that thread passed to SetCause()
  int64_t issued_ns = 0, begin_ns = 0, end_ns = 0;  // steady clock, like Event::TimestampNs
  bool has_parts = false;                           // a graph, whose nodes are spans of their own
  bool is_part = false;
};

// Offset from the steady clock to the system clock, which other profilers use.
int64_t SteadyToSystemNs();

class LaunchTrace {
 public:
  static bool On() { return on_.load(std::memory_order_relaxed); }
  // False when a trace is already running: there is one at a time.
  static bool Start();
  // Waits for the launches since Start() and returns them in the order in which they ended. A kernel's error is left to
  // the next call that checks for it.
  static std::vector<LaunchSpan> Stop();
  // A number attached to this thread's launches from here on, by which a profiler finds their cause; 0 is none.
  static void SetCause(uint64_t cause);
  // A task that runs `task` and records when.
  static Task Timed(const char* op, int device, uint64_t stream, Task task);

  // In scope, a part of the timed launch that this thread runs; no effect in a launch that is not timed.
  class Part {
   public:
    explicit Part(const char* op);
    ~Part();
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    std::unique_ptr<LaunchSpan> span_;
  };

  // The timed launch that this thread runs, for other threads that run parts of it before it ends; null: not timed.
  static LaunchSpan* Running();
  // In scope, this thread runs parts of a launch of another thread.
  class Sharing {
   public:
    explicit Sharing(LaunchSpan* launch);
    ~Sharing();
    Sharing(const Sharing&) = delete;
    Sharing& operator=(const Sharing&) = delete;
  };

 private:
  static std::atomic<bool> on_;
};

}  // namespace npu

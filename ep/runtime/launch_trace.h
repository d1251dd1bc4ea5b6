// When each launch ran, for profiles. Off, a launch pays one relaxed load.
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
  int thread = 0;                                   // the system's id of the one that launched it
  uint64_t cause = 0;                               // what that thread had said by SetCause()
  int64_t issued_ns = 0, begin_ns = 0, end_ns = 0;  // of the steady clock, as Event::TimestampNs
  bool has_parts = false;                           // a graph, whose nodes are spans of their own
  bool is_part = false;
};

// What to add to a time of the steady clock for one of the system's, on which other profilers' times are.
int64_t SteadyToSystemNs();

class LaunchTrace {
 public:
  static bool On() { return on_.load(std::memory_order_relaxed); }
  // False when a trace runs already: there is one at a time.
  static bool Start();
  // Waits for what was launched since Start() and returns it in the order in which it ended. A kernel's error is left
  // to the next call that asks for it.
  static std::vector<LaunchSpan> Stop();
  // A number that this thread's launches carry from here on, so that a profiler finds back what made them; 0 is none.
  static void SetCause(uint64_t cause);
  // A task that runs `task` and notes when.
  static Task Timed(const char* op, int device, uint64_t stream, Task task);

  // While it lives, a part of the timed launch that this thread runs; nothing in a launch that is not timed.
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
  // While it lives, this thread runs parts of a launch of another thread.
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

// Chooses the CPU of a thread that is woken while its waker keeps working.
#pragma once

#include <atomic>

#if defined(__linux__)
#include <sched.h>
#endif

namespace npu {

// Linux wakes a thread on the CPU that it last ran on unless it sees an idle one that shares a cache, and a virtual
// machine may hide shared caches: woken on its waker's CPU, a thread waits until the waker's time slice ends, 3 ms. The
// waker therefore removes its own CPU from the sleeper's affinity, which the sleeper restores once awake. One object
// belongs to one sleeper.
class WakePlacement {
 public:
  // The sleeper's side, around its sleep.
  void BeforeSleep();
  void AfterWake();
  // The waker's side; cheap unless both have the same CPU.
  void BeforeWake();

 private:
#if defined(__linux__)
  enum State { kFree, kBarring, kBarred };
  std::atomic<int> cpu_{-1};  // where it fell asleep; -1: awake
  std::atomic<int> thread_{0};
  std::atomic<int> state_{kFree};
  cpu_set_t allowed_;  // the sleeper's own affinity
#endif
};

#if !defined(__linux__)
inline void WakePlacement::BeforeSleep() {}
inline void WakePlacement::AfterWake() {}
inline void WakePlacement::BeforeWake() {}
#endif

}  // namespace npu

#include "ep/runtime/wake_placement.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#if defined(__linux__)
#include <sched.h>

namespace npu {
namespace {

// The CPUs that the calling thread may use.
cpu_set_t Affinity() {
  cpu_set_t set;
  REQUIRE(sched_getaffinity(0, sizeof(set), &set) == 0);
  return set;
}

TEST_CASE("a sleeping thread is woken on another CPU than its waker's, and its affinity is restored") {
  const cpu_set_t before = Affinity();
  if (CPU_COUNT(&before) < 2) return;  // there is no other CPU

  WakePlacement placement;
  std::atomic<int> slept_on{-1}, woken{0}, woke_on{-1};
  cpu_set_t after;
  std::thread sleeper([&] {
    // Pinned to its CPU until it sleeps.
    cpu_set_t here;
    CPU_ZERO(&here);
    const int cpu = sched_getcpu();
    CPU_SET(static_cast<size_t>(cpu), &here);
    sched_setaffinity(0, sizeof(here), &here);
    placement.BeforeSleep();
    sched_setaffinity(0, sizeof(before), &before);
    slept_on = cpu;
    woken.wait(0);
    woke_on = sched_getcpu();
    placement.AfterWake();
    sched_getaffinity(0, sizeof(after), &after);
  });
  while (slept_on < 0) std::this_thread::yield();
  cpu_set_t theirs;
  CPU_ZERO(&theirs);
  CPU_SET(static_cast<size_t>(slept_on), &theirs);
  REQUIRE(sched_setaffinity(0, sizeof(theirs), &theirs) == 0);
  placement.BeforeWake();
  woken = 1;
  woken.notify_one();
  sleeper.join();
  sched_setaffinity(0, sizeof(before), &before);
  CHECK(woke_on != slept_on);
  CHECK(CPU_EQUAL(&after, &before) != 0);
}

TEST_CASE("a thread that is awake or sleeps on another CPU is not moved") {
  const cpu_set_t before = Affinity();
  WakePlacement placement;
  placement.BeforeWake();  // no thread sleeps
  placement.BeforeSleep();
  placement.AfterWake();
  placement.BeforeWake();
  const cpu_set_t after = Affinity();
  CHECK(CPU_EQUAL(&after, &before) != 0);
}

}  // namespace
}  // namespace npu

#endif

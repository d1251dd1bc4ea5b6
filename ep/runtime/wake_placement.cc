#include "ep/runtime/wake_placement.h"

#if defined(__linux__)

#include <sys/syscall.h>
#include <unistd.h>

namespace npu {

void WakePlacement::BeforeSleep() {
  if (thread_.load(std::memory_order_relaxed) == 0) thread_.store(static_cast<int>(syscall(SYS_gettid)));
  cpu_.store(sched_getcpu());
}

void WakePlacement::AfterWake() {
  cpu_.store(-1);
  // If the sleeper woke by itself while its affinity is being changed, it restores the affinity after its next sleep.
  if (state_.load(std::memory_order_acquire) != kBarred) return;
  sched_setaffinity(0, sizeof(allowed_), &allowed_);
  state_.store(kFree, std::memory_order_release);
}

void WakePlacement::BeforeWake() {
  const int cpu = cpu_.load();
  if (cpu < 0 || cpu != sched_getcpu()) return;
  int free = kFree;
  if (!state_.compare_exchange_strong(free, kBarring, std::memory_order_acquire)) return;
  bool barred = false;
  const int thread = thread_.load();
  // Fails without effect on more CPUs than the set can hold.
  if (sched_getaffinity(thread, sizeof(allowed_), &allowed_) == 0 && CPU_COUNT(&allowed_) > 1) {
    cpu_set_t others = allowed_;
    CPU_CLR(static_cast<size_t>(cpu), &others);
    barred = sched_setaffinity(thread, sizeof(others), &others) == 0;
  }
  state_.store(barred ? kBarred : kFree, std::memory_order_release);
}

}  // namespace npu

#endif

#include "ep/runtime/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "ep/runtime/machine.h"
#include "ep/runtime/spin.h"
#include "ep/runtime/wake_placement.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

// How long an idle worker watches for the next kernel before it sleeps, and how long the caller
// watches for the last range before it does.
constexpr std::chrono::microseconds kWorkerSpin{20};
constexpr std::chrono::microseconds kCallerSpin{50};
// More ranges than threads even out cores that other processes slow down.
constexpr int64_t kRangesPerThread = 4;

thread_local bool inside_parallel = false;

class ThreadPool {
 public:
  explicit ThreadPool(int threads) : threads_(threads), placements_(static_cast<size_t>(threads - 1)) {
    for (int i = 1; i < threads; ++i) {
      WakePlacement& placement = placements_[static_cast<size_t>(i - 1)];
      workers_.push_back(StartWorkerThread(Concat("npu-pool-", i), [this, &placement] { Work(placement); }));
    }
  }

  int threads() const { return threads_; }

  // False when another kernel has the pool; nothing ran then.
  bool TryRun(int64_t n, uint32_t ranges, const RangeFunction& f) {
    if (busy_.exchange(true, std::memory_order_acquire)) return false;
    n_ = n;
    ranges_ = ranges;
    function_ = &f;
    error_ = nullptr;
    failed_.store(false, std::memory_order_relaxed);
    finished_.store(0, std::memory_order_relaxed);
    const uint32_t generation = static_cast<uint32_t>(ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(static_cast<uint64_t>(generation) << 32 | ranges);
    WakeSleepersFor(ranges - 1);

    inside_parallel = true;
    while (RunOneRange()) {
    }
    inside_parallel = false;
    WaitUntilFinished(ranges);

    const std::exception_ptr error = std::move(error_);
    error_ = nullptr;
    busy_.store(false, std::memory_order_release);
    if (error) std::rethrow_exception(error);
    return true;
  }

  // True while fewer threads help than workers sleep, so that never more than threads() work.
  bool Enrol() {
    uint32_t helpers = helpers_.load();
    do {
      if (sleepers_.load() <= helpers) return false;
    } while (!helpers_.compare_exchange_weak(helpers, helpers + 1));
    return true;
  }

  // A kernel that counted on this helper may have begun since it looked last. One of the two sees the other.
  void Leave() {
    helpers_.fetch_sub(1);
    if (Unclaimed(ticket_.load()) != 0) WakeSleepersFor(1);
  }

  bool Help() {
    if (Unclaimed(ticket_.load(std::memory_order_acquire)) == 0) return false;
    // The host program may have set roundings or denormals as it likes.
    std::fenv_t environment;
    std::fegetenv(&environment);
    std::fesetenv(FE_DFL_ENV);
    inside_parallel = true;
    const bool ran = RunOneRange();
    inside_parallel = false;
    std::fesetenv(&environment);
    return ran;
  }

 private:
  static uint32_t Unclaimed(uint64_t ticket) { return static_cast<uint32_t>(ticket); }

  // Claims a range and runs it. The generation in the ticket's upper half makes a claim that is late by
  // a whole job fail; a job whose range is claimed cannot end, so its description may be read then.
  bool RunOneRange() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    do {
      if (Unclaimed(ticket) == 0) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    const uint32_t ranges = ranges_;
    const int64_t index = ranges - Unclaimed(ticket);
    if (!failed_.load(std::memory_order_relaxed)) {
      const int64_t each = n_ / ranges, longer = n_ % ranges;  // the first `longer` ranges take one more
      const int64_t begin = index * each + std::min(index, longer);
      try {
        (*function_)(begin, begin + each + (index < longer ? 1 : 0));
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
    }
    if (finished_.fetch_add(1) + 1 == ranges && caller_sleeps_.load() != 0) finished_.notify_one();
    return true;
  }

  void WaitUntilFinished(uint32_t ranges) {
    const auto finished = [&] { return finished_.load(std::memory_order_acquire) == ranges; };
    if (SpinUntil(finished, kCallerSpin)) return;
    caller_sleeps_.store(1);
    for (uint32_t seen; (seen = finished_.load()) != ranges;) finished_.wait(seen);
    caller_sleeps_.store(0);
  }

  // Helpers take ranges as awake workers do.
  void WakeSleepersFor(uint32_t ranges) {
    const uint32_t helpers = helpers_.load();
    if (sleepers_.load() == 0 || ranges <= helpers) return;
    for (WakePlacement& placement : placements_) placement.BeforeWake();
    epoch_.fetch_add(1);
    if (ranges - helpers == 1) {
      epoch_.notify_one();
    } else {
      epoch_.notify_all();
    }
  }

  void Work(WakePlacement& placement) {
    inside_parallel = true;  // whatever a range calls in turn runs on this thread alone
    const auto has_work = [this] { return Unclaimed(ticket_.load(std::memory_order_acquire)) != 0; };
    for (;;) {
      if (SpinUntil(has_work, kWorkerSpin)) {
        RunOneRange();
        continue;
      }
      // The caller stores the ticket and then looks for sleepers; this thread announces itself and then
      // looks at the ticket: one of the two sees the other.
      placement.BeforeSleep();
      sleepers_.fetch_add(1);
      const uint32_t epoch = epoch_.load();
      if (Unclaimed(ticket_.load()) == 0) epoch_.wait(epoch);
      sleepers_.fetch_sub(1);
      placement.AfterWake();
    }
  }

  const int threads_;
  std::atomic<bool> busy_{false};
  // The job; written by the caller while no range can be claimed.
  int64_t n_ = 0;
  uint32_t ranges_ = 0;
  const RangeFunction* function_ = nullptr;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  alignas(64) std::atomic<uint64_t> ticket_{0};  // generation << 32 | ranges not yet claimed
  alignas(64) std::atomic<uint32_t> finished_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> helpers_{0};
  std::atomic<uint32_t> epoch_{0};
  std::vector<WakePlacement> placements_;  // a worker's each
  std::vector<std::thread> workers_;
};

// Never destroyed: streams may still run kernels while static destructors do.
ThreadPool& Pool() {
  static ThreadPool& pool = *new ThreadPool(NumThreadsFromEnvironment().value_or(UsableCores()));
  return pool;
}

}  // namespace

PoolHelper::PoolHelper() : enrolled_(!inside_parallel && Pool().Enrol()) {}
PoolHelper::~PoolHelper() {
  if (enrolled_) Pool().Leave();
}
bool PoolHelper::Help() { return enrolled_ && Pool().Help(); }

int NumThreads() { return Pool().threads(); }

void ParallelFor(int64_t n, int64_t grain, RangeFunction f) {
  if (n <= 0) return;
  const int64_t most = n / std::max<int64_t>(grain, 1);
  if (most >= 2 && !inside_parallel) {
    ThreadPool& pool = Pool();
    const int64_t ranges = std::min(most, pool.threads() * kRangesPerThread);
    if (pool.threads() > 1 && pool.TryRun(n, static_cast<uint32_t>(ranges), f)) return;
  }
  f(0, n);
}

}  // namespace npu

#include "ep/runtime/thread_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cfenv>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "ep/runtime/machine.h"
#include "ep/runtime/pool_job.h"
#include "ep/runtime/spin.h"
#include "ep/runtime/wake_placement.h"
#include "ep/runtime/worker_thread.h"

namespace npu {
namespace {

constexpr std::chrono::microseconds kWorkerSpin{20};  // how long an idle worker polls for work before it sleeps
// How long a core must have been free before a worker that found none is woken: the pause between two kernels of
// another stream is shorter, and a worker that wakes in it only competes for the core.
constexpr std::chrono::microseconds kCoreIsFree{50};
// More ranges than threads even out cores that other processes slow down.
constexpr int64_t kRangesPerThread = 4;
constexpr int kMostJobs = 32;

thread_local bool inside_parallel = false;
thread_local int pool_device = 0;

// In scope, a nested ParallelFor runs on this thread alone.
class InsideParallel {
 public:
  InsideParallel() { inside_parallel = true; }
  ~InsideParallel() { inside_parallel = false; }
  InsideParallel(const InsideParallel&) = delete;
  InsideParallel& operator=(const InsideParallel&) = delete;
};

// Kernels in flight, one job each. A caller works on its own job only; for each range, workers and helpers choose the
// job with the fewest threads, comparing devices first. They skip a job if that would put more than threads() threads
// to work: a range whose thread waits for a core delays the whole kernel by a time slice.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) : threads_(threads), placements_(static_cast<size_t>(threads - 1)) {
    for (int i = 1; i < threads; ++i) {
      WakePlacement& placement = placements_[static_cast<size_t>(i - 1)];
      workers_.push_back(StartWorkerThread(Concat("npu-pool-", i), [this, &placement] { Work(placement); }));
    }
  }

  int threads() const { return static_cast<int>(threads_); }

  void Run(int64_t n, uint32_t ranges, const RangeFunction& f) {
    const int place = TakePlace();
    if (place < 0) {
      const InsideParallel inside;
      for (uint32_t i = 0; i < ranges; ++i) RunRange(n, ranges, i, f);
      return;
    }
    PoolJob& job = jobs_[static_cast<size_t>(place)];
    job.Begin(pool_device, n, ranges, f);
    WakeSleepersFor(job.device(), ranges - 1);
    {
      const InsideParallel inside;
      while (job.ClaimAndRun(PoolJob::From::kFirst)) {
        // Workers that found no free core sleep although ranges are left.
        if (free_since_.load(std::memory_order_relaxed) != kNotCrowded) WakeSleepersFor(job.device(), job.unclaimed());
      }
    }
    const std::exception_ptr error = job.Finish();
    owned_.fetch_and(~(1u << place), std::memory_order_release);
    if (error) std::rethrow_exception(error);
  }

  // True while fewer threads help than workers sleep, so that at most threads() threads work.
  bool Enrol() {
    uint32_t helpers = helpers_.load();
    do {
      if (sleepers_.load() <= helpers || AllCoresBusy()) return false;
    } while (!helpers_.compare_exchange_weak(helpers, helpers + 1));
    return true;
  }

  // A kernel that counted on this helper may have begun since the last call of Help(). One of the two sees the other.
  void Leave() {
    helpers_.fetch_sub(1);
    if (const PoolJob* job = Choose()) WakeSleepersFor(job->device(), 1);
  }

  bool Help() {
    PoolJob* const job = Choose();
    if (job == nullptr) return false;
    // The host program may have changed the rounding mode or the handling of denormals.
    std::fenv_t environment;
    std::fegetenv(&environment);
    std::fesetenv(FE_DFL_ENV);
    bool ran = false;
    {
      const InsideParallel inside;
      ran = job->ClaimAndRun(PoolJob::From::kLast);
    }
    std::fesetenv(&environment);
    return ran;
  }

 private:
  // Threads at work now; approximate, since they start and stop meanwhile.
  struct Load {
    uint32_t running = 0, devices = 0;
    std::array<uint32_t, kMaxDevices> running_of{};
  };

  // The lowest free slot for a job, so that few are ever used; -1 when there is none.
  int TakePlace() {
    uint32_t owned = owned_.load(std::memory_order_relaxed);
    int place;
    do {
      place = std::countr_one(owned);
      if (place == kMostJobs) return -1;
    } while (!owned_.compare_exchange_weak(owned, owned | 1u << place, std::memory_order_acquire,
                                           std::memory_order_relaxed));
    if ((used_.load(std::memory_order_relaxed) & 1u << place) == 0) used_.fetch_or(1u << place);
    return place;
  }

  template <class Visit>
  void ForEachJob(uint32_t places, const Visit& visit) {
    for (; places != 0; places &= places - 1) visit(jobs_[static_cast<size_t>(std::countr_zero(places))]);
  }

  Load LoadOf(uint32_t places) {
    Load load;
    ForEachJob(places, [&](const PoolJob& job) {
      const uint32_t running = job.running();
      uint32_t& of_device = load.running_of[static_cast<size_t>(job.device())];
      load.devices += running != 0 && of_device == 0;
      of_device += running;
      load.running += running;
    });
    return load;
  }

  // Number of additional threads that may work for a device: up to all cores together, and up to its share of them
  // regardless of the other devices.
  uint32_t FreeCores(const Load& load, int device) const {
    const uint32_t of_device = load.running_of[static_cast<size_t>(device)];
    const uint32_t share = threads_ / std::max(load.devices, 1u);
    return std::max(threads_ - std::min(load.running, threads_), share - std::min(of_device, share));
  }
  uint32_t FreeCores(int device) {
    const uint32_t places = used_.load();
    return std::has_single_bit(places) ? threads_ - 1 : FreeCores(LoadOf(places), device);
  }
  bool AllCoresBusy() {
    const uint32_t places = used_.load();
    return std::popcount(places) > 1 && LoadOf(places).running >= threads_;
  }

  // The job from which a thread should take its next range; null when none has a range and a core left for it.
  PoolJob* Choose() {
    const uint32_t places = used_.load();
    if (places == 0) return nullptr;
    if (!std::has_single_bit(places)) return ChooseAmong(places);
    PoolJob& job = jobs_[static_cast<size_t>(std::countr_zero(places))];
    return job.unclaimed() != 0 ? &job : nullptr;
  }

  PoolJob* ChooseAmong(uint32_t places) {
    bool any = false;
    ForEachJob(places, [&](const PoolJob& job) { any |= job.unclaimed() != 0; });
    if (!any) return nullptr;
    const Load load = LoadOf(places);
    PoolJob* chosen = nullptr;
    std::pair<uint32_t, uint32_t> fewest;
    ForEachJob(places, [&](PoolJob& job) {
      const int device = job.device();
      if (job.unclaimed() == 0 || FreeCores(load, device) == 0) return;
      const std::pair threads(load.running_of[static_cast<size_t>(device)], job.running());
      if (chosen != nullptr && threads >= fewest) return;
      chosen = &job;
      fewest = threads;
    });
    return chosen;
  }

  // Helpers count as awake workers.
  void WakeSleepersFor(int device, uint32_t ranges) {
    const uint32_t sleepers = sleepers_.load();
    const uint32_t helpers = helpers_.load();
    if (sleepers == 0 || ranges <= helpers) return;
    const uint32_t free = FreeCores(device);
    const uint32_t wanted = std::min(ranges, free);
    if (!MayWake(free, wanted == std::min(ranges, threads_ - 1)) || wanted <= helpers) return;
    for (WakePlacement& placement : placements_) placement.BeforeWake();
    epoch_.fetch_add(1);
    if (wanted - helpers >= sleepers) {
      epoch_.notify_all();
    } else {
      for (uint32_t i = helpers; i < wanted; ++i) epoch_.notify_one();
    }
  }

  // Whether to wake workers for `free` cores: immediately, unless cores have recently been short. `all`: there are
  // cores for all of them.
  bool MayWake(uint32_t free, bool all) {
    const int64_t since = free_since_.load(std::memory_order_relaxed);
    if (free == 0) {
      if (since != kCrowded) free_since_.store(kCrowded, std::memory_order_relaxed);
      return false;
    }
    if (since != kNotCrowded) {
      const int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
      if (since == kCrowded) free_since_.store(now, std::memory_order_relaxed);
      if (since == kCrowded || now - since < std::chrono::nanoseconds(kCoreIsFree).count()) return false;
    }
    const int64_t next = all ? kNotCrowded : kCrowded;
    if (since != next) free_since_.store(next, std::memory_order_relaxed);
    return true;
  }

  void Work(WakePlacement& placement) {
    inside_parallel = true;
    for (;;) {
      PoolJob* job = nullptr;
      if (SpinUntil([&] { return (job = Choose()) != nullptr; }, kWorkerSpin)) {
        job->ClaimAndRun(PoolJob::From::kLast);
        continue;
      }
      // The caller publishes its job and then looks for sleepers; this thread registers as a sleeper and then looks for
      // jobs: one of the two sees the other.
      free_since_.store(AllCoresBusy() ? kCrowded : kNotCrowded, std::memory_order_relaxed);
      placement.BeforeSleep();
      sleepers_.fetch_add(1);
      const uint32_t epoch = epoch_.load();
      if (Choose() == nullptr) epoch_.wait(epoch);
      sleepers_.fetch_sub(1);
      placement.AfterWake();
    }
  }

  const uint32_t threads_;
  // Bit i of owned_: jobs_[i] has an owner; of used_: it has ever had one. Idle workers poll used_, so it must not be
  // written for every kernel.
  alignas(64) std::atomic<uint32_t> owned_{0};
  alignas(64) std::atomic<uint32_t> used_{0};
  alignas(64) std::atomic<uint32_t> sleepers_{0};
  std::atomic<uint32_t> helpers_{0};
  std::atomic<uint32_t> epoch_{0};
  // Clock time in nanoseconds since which a core that a worker lacked has been free, or one of these.
  static constexpr int64_t kNotCrowded = -1, kCrowded = 0;
  std::atomic<int64_t> free_since_{kNotCrowded};
  std::array<PoolJob, kMostJobs> jobs_;
  std::vector<WakePlacement> placements_;  // one per worker
  std::vector<std::thread> workers_;
};

// Never destroyed: streams may still run kernels while static destructors do.
ThreadPool& Pool() {
  static ThreadPool& pool = *new ThreadPool(NumThreads());
  return pool;
}

}  // namespace

// Starts no thread: describing a device must not keep a process from forking.
int NumThreads() {
  static const int threads = NumThreadsFromEnvironment().value_or(UsableCores());
  return threads;
}

// A forked child has the parent's jobs, but not their threads.
PoolHelper::PoolHelper() : enrolled_(!inside_parallel && !InForkedChild() && Pool().Enrol()) {}
PoolHelper::~PoolHelper() {
  if (enrolled_) Pool().Leave();
}
bool PoolHelper::Help() { return enrolled_ && Pool().Help(); }

void SetPoolDevice(int device) {
  NPU_CHECK(device >= 0 && device < kMaxDevices, "expected a device below ", kMaxDevices, ", got ", device);
  pool_device = device;
}

void ParallelFor(int64_t n, int64_t grain, RangeFunction f) {
  if (n <= 0) return;
  const int64_t most = n / std::max<int64_t>(grain, 1);
  if (most >= 2 && !inside_parallel) {
    ThreadPool& pool = Pool();
    if (pool.threads() > 1)
      return pool.Run(
          n, static_cast<uint32_t>(std::min({most, pool.threads() * kRangesPerThread, PoolJob::kMostRanges})), f);
  }
  f(0, n);
}

}  // namespace npu

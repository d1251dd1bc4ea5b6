// A kernel that runs on the pool: ranges to claim, and a caller that waits for the last of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <utility>

#include "ep/runtime/spin.h"
#include "ep/runtime/thread_pool.h"

namespace npu {

// Range `index` of [0, n) split into `ranges` parts; the first n % ranges parts are longer by one.
inline void RunRange(int64_t n, int64_t ranges, int64_t index, const RangeFunction& f) {
  const int64_t each = n / ranges, longer = n % ranges;
  const int64_t begin = index * each + std::min(index, longer);
  f(begin, begin + each + (index < longer ? 1 : 0));
}

// A slot for one job after another. It fits one cache line: a thread that claims a range reads the description next,
// and a thread that looks for work reads one line per job.
class alignas(64) PoolJob {
 public:
  static constexpr int64_t kMostRanges = 0xffff;

  // The owner's side: Begin, ClaimAndRun until it returns false, Finish.
  void Begin(int device, int64_t n, uint32_t ranges, const RangeFunction& f) {
    n_ = n;
    ranges_ = ranges;
    function_ = &f;
    device_.store(device, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    unfinished_.store(ranges, std::memory_order_relaxed);
    const uint32_t generation = static_cast<uint32_t>(ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(static_cast<uint64_t>(generation) << 32 | ranges);  // [0, ranges)
  }

  // Waits for ranges that other threads run; returns the first exception and clears it.
  std::exception_ptr Finish() {
    if (!SpinUntil([&] { return unfinished_.load(std::memory_order_acquire) == 0; }, kOwnerSpin)) {
      owner_sleeps_.store(1);
      for (uint32_t seen; (seen = unfinished_.load()) != 0;) unfinished_.wait(seen);
      owner_sleeps_.store(0);
    }
    return std::exchange(error_, nullptr);
  }

  // The owner claims ranges from the first one on, other threads from the last one back: what a thread wrote in one
  // kernel it mostly reads in the next one, from its own cache.
  enum class From { kFirst, kLast };

  // False when there was no range to claim. The generation in the ticket's upper half makes a claim on an earlier job
  // fail; a job with a claimed range cannot end, so its description can then be read.
  bool ClaimAndRun(From from) {
    constexpr uint64_t kOneAtFirst = uint64_t{1} << 16;
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    uint64_t left = 0;
    do {
      if (Unclaimed(ticket) == 0) return false;
      left = from == From::kFirst ? ticket + kOneAtFirst : ticket - 1;
    } while (!ticket_.compare_exchange_weak(ticket, left, std::memory_order_acq_rel, std::memory_order_acquire));
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        RunRange(n_, ranges_, from == From::kFirst ? First(ticket) : Last(ticket) - 1, *function_);
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
    }
    if (unfinished_.fetch_sub(1) == 1 && owner_sleeps_.load() != 0) unfinished_.notify_one();
    return true;
  }

  uint32_t unclaimed() const { return Unclaimed(ticket_.load()); }
  // Number of threads working on it: those with a range, and its owner, which is about to take one.
  uint32_t running() const {
    const uint32_t unclaimed = Unclaimed(ticket_.load(std::memory_order_relaxed));
    const uint32_t unfinished = unfinished_.load(std::memory_order_relaxed);
    const uint32_t claimed = unfinished > unclaimed ? unfinished - unclaimed : 0;
    return unclaimed == 0 ? claimed : std::max(claimed, 1u);
  }
  int device() const { return device_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::chrono::microseconds kOwnerSpin{50};

  // Ranges not yet claimed: [first, last).
  static uint32_t First(uint64_t ticket) { return static_cast<uint32_t>(ticket) >> 16; }
  static uint32_t Last(uint64_t ticket) { return static_cast<uint32_t>(ticket) & 0xffff; }
  static uint32_t Unclaimed(uint64_t ticket) { return Last(ticket) - First(ticket); }

  std::atomic<uint64_t> ticket_{0};  // generation << 32 | first << 16 | last
  std::atomic<uint32_t> unfinished_{0};
  std::atomic<uint32_t> owner_sleeps_{0};
  // Written by the owner while no range can be claimed.
  int64_t n_ = 0;
  const RangeFunction* function_ = nullptr;
  uint32_t ranges_ = 0;
  std::atomic<int> device_{0};  // read by threads that look for work
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

}  // namespace npu

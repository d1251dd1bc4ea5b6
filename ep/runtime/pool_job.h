// A kernel that the pool runs: ranges to claim, and a caller that waits for the last of them.
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

// Range `index` of [0, n) in `ranges` parts, of which the first take one more where n does not divide.
inline void RunRange(int64_t n, int64_t ranges, int64_t index, const RangeFunction& f) {
  const int64_t each = n / ranges, longer = n % ranges;
  const int64_t begin = index * each + std::min(index, longer);
  f(begin, begin + each + (index < longer ? 1 : 0));
}

// A place for one job after another. All of it lies in one cache line: who claims a range needs the description next,
// and who looks for work reads one line a job.
class alignas(64) PoolJob {
 public:
  // The owner's side: Begin, ClaimAndRun until it is false, Finish.
  void Begin(int device, int64_t n, uint32_t ranges, const RangeFunction& f) {
    n_ = n;
    ranges_ = ranges;
    function_ = &f;
    device_.store(device, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    unfinished_.store(ranges, std::memory_order_relaxed);
    const uint32_t generation = static_cast<uint32_t>(ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(static_cast<uint64_t>(generation) << 32 | ranges);
  }

  // Waits for ranges that others run; returns the first exception and keeps none.
  std::exception_ptr Finish() {
    if (!SpinUntil([&] { return unfinished_.load(std::memory_order_acquire) == 0; }, kOwnerSpin)) {
      owner_sleeps_.store(1);
      for (uint32_t seen; (seen = unfinished_.load()) != 0;) unfinished_.wait(seen);
      owner_sleeps_.store(0);
    }
    return std::exchange(error_, nullptr);
  }

  // False when there was no range to claim. The generation in the ticket's upper half makes a claim that is late by
  // a whole job fail; a job whose range is claimed cannot end, so its description may be read then.
  bool ClaimAndRun() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    do {
      if (Unclaimed(ticket) == 0) return false;
    } while (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        RunRange(n_, ranges_, ranges_ - Unclaimed(ticket), *function_);
      } catch (...) {
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
    }
    if (unfinished_.fetch_sub(1) == 1 && owner_sleeps_.load() != 0) unfinished_.notify_one();
    return true;
  }

  uint32_t unclaimed() const { return Unclaimed(ticket_.load()); }
  // Threads at work on it: those with a range, and its owner, which is about to take one.
  uint32_t running() const {
    const uint32_t unclaimed = Unclaimed(ticket_.load(std::memory_order_relaxed));
    const uint32_t unfinished = unfinished_.load(std::memory_order_relaxed);
    const uint32_t claimed = unfinished > unclaimed ? unfinished - unclaimed : 0;
    return unclaimed == 0 ? claimed : std::max(claimed, 1u);
  }
  int device() const { return device_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::chrono::microseconds kOwnerSpin{50};

  static uint32_t Unclaimed(uint64_t ticket) { return static_cast<uint32_t>(ticket); }

  std::atomic<uint64_t> ticket_{0};  // generation << 32 | ranges not yet claimed
  std::atomic<uint32_t> unfinished_{0};
  std::atomic<uint32_t> owner_sleeps_{0};
  // Written by the owner while no range can be claimed.
  int64_t n_ = 0;
  const RangeFunction* function_ = nullptr;
  uint32_t ranges_ = 0;
  std::atomic<int> device_{0};  // read by who looks for work
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

}  // namespace npu

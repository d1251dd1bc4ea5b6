#include "ep/runtime/thread_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <functional>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/machine.h"
#include "tests/cpp/support/child_process.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

Ranges RangesOf(int64_t n, int64_t grain) {
  std::mutex mutex;
  Ranges ranges;
  ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
    std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

void Spin(std::chrono::nanoseconds limit, const std::function<bool()>& until = [] { return false; }) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!until() && std::chrono::steady_clock::now() < end) {
  }
}

}  // namespace

TEST_CASE("ranges cover [0, n) exactly once, in order, none smaller than the grain") {
  for (int64_t n : {1, 2, 7, 64, 1000, 12345})
    for (int64_t grain : {0, 1, 3, 100, 1 << 20}) {
      CAPTURE(n);
      CAPTURE(grain);
      int64_t next = 0;
      bool contiguous = true, large_enough = true;
      for (const auto& [begin, end] : RangesOf(n, grain)) {
        contiguous &= begin == next;
        large_enough &= end - begin >= std::min(n, std::max<int64_t>(grain, 1));
        next = end;
      }
      CHECK(contiguous);
      CHECK(large_enough);
      CHECK(next == n);
    }
  CHECK(RangesOf(0, 1).empty());
  CHECK(RangesOf(-5, 1).empty());
}

TEST_CASE("the largest n does not overflow") {
  const int64_t n = std::numeric_limits<int64_t>::max();
  std::atomic<uint64_t> sum{0};
  ParallelFor(n, 1, [&](int64_t begin, int64_t end) { sum += static_cast<uint64_t>(end - begin); });
  CHECK(sum == static_cast<uint64_t>(n));
}

TEST_CASE("two threads take part when the pool has them") {
  if (NumThreads() < 2) return;
  std::atomic<int> arrived{0};
  // Every range waits for a second thread, so this passes only if the pool uses one.
  std::atomic<bool> both{false};
  ParallelFor(2, 1, [&](int64_t, int64_t) {
    ++arrived;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    while (arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (arrived == 2) both = true;
  });
  CHECK(both);
}

TEST_CASE("the first exception reaches the caller, and the pool stays usable") {
  for (int i = 0; i < 200; ++i) {
    CHECK_THROWS_WITH_AS(ParallelFor(1000, 1,
                                     [](int64_t, int64_t end) {  // on one core there is a single range
                                       if (end > 300) throw std::runtime_error("range");
                                     }),
                         "range", std::runtime_error);
    std::atomic<int64_t> sum{0};
    ParallelFor(1000, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
    CHECK(sum == 1000);
  }
}

TEST_CASE("a nested call runs on its own thread") {
  std::atomic<int64_t> sum{0};
  std::atomic<int> strangers{0};
  ParallelFor(64, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto self = std::this_thread::get_id();
      ParallelFor(100, 1, [&](int64_t b, int64_t e) {
        strangers += std::this_thread::get_id() != self;
        sum += e - b;
      });
    }
  });
  CHECK(sum == 6400);
  CHECK(strangers == 0);
}

TEST_CASE("sleeping workers wake up again") {
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ParallelFor(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  }
  CHECK(sum == 2000);
}

TEST_CASE("a thread waiting for a kernel runs ranges of it in the default floating-point environment") {
  if (NumThreads() < 2 || UsableCores() < 2) return;  // on one core the waiting thread is never in time
  test::TestDevice t;
  std::fesetround(FE_UPWARD);
  std::atomic<bool> helped{false};
  std::atomic<int> other_roundings{0};
  const auto waiter = std::this_thread::get_id();
  // Whether the waiting thread is in time depends on the scheduler: it must be at least once.
  for (int i = 0; i < 50000 && !helped; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the workers fall asleep
    std::atomic<bool> waits{false};
    t.stream().Launch("op", [&] {
      Spin(std::chrono::seconds(20), [&] { return waits.load(); });
      Spin(std::chrono::microseconds(10));
      ParallelFor(2, 1, [&](int64_t, int64_t) {
        if (std::this_thread::get_id() == waiter) {
          helped = true;
          other_roundings += std::fegetround() != FE_TONEAREST;
        }
        Spin(std::chrono::microseconds(50));
      });
    });
    waits = true;
    t.stream().Synchronize();
  }
  CHECK(helped);
  CHECK(other_roundings == 0);
  CHECK(std::fegetround() == FE_UPWARD);
  std::fesetround(FE_TONEAREST);
}

TEST_CASE("an exception in a range run by the waiting thread becomes the stream's error") {
  test::TestDevice t;
  for (int i = 0; i < 50; ++i) {
    t.stream().Launch("op", [] { ParallelFor(100, 1, [](int64_t, int64_t) { throw std::runtime_error("range"); }); });
    CHECK_THROWS_WITH(t.stream().Synchronize(), "[op] range");
  }
}

TEST_CASE("kernels of two streams share the pool") {
  test::TestDevice t;
  const auto other = t.device.CreateStream();
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 300; ++i)
    for (Stream* stream : {&t.stream(), other.get()})
      stream->Launch("op", [&] { ParallelFor(1000, 10, [&](int64_t b, int64_t e) { sum += e - b; }); });
  t.device.Synchronize();
  CHECK(sum == 600000);
}

TEST_CASE("an exception in a kernel's range becomes the stream's error") {
  test::TestDevice t;
  t.stream().Launch("op", [] { ParallelFor(100, 1, [](int64_t, int64_t) { throw std::runtime_error("range"); }); });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[op] range");
}

TEST_CASE("child: everything runs on the calling thread" * doctest::skip()) {
  CHECK(NumThreads() == 1);
  CHECK(RangesOf(1000, 1) == Ranges{{0, 1000}});
}

TEST_CASE("child: seven threads" * doctest::skip()) {
  CHECK(NumThreads() == 7);
  std::atomic<int64_t> sum{0};
  for (int i = 0; i < 2000; ++i) ParallelFor(50, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  CHECK(sum == 100000);
}

TEST_CASE("ORT_NPU_NUM_THREADS sets the number of threads") {
  CHECK(test::RunTestCase("child: everything runs on the calling thread", {{"ORT_NPU_NUM_THREADS", "1"}}).exit_code ==
        0);
  const auto child = test::RunTestCase("child: seven threads", {{"ORT_NPU_NUM_THREADS", "7"}});
  CAPTURE(child.output);
  CHECK(child.exit_code == 0);
}

}  // namespace npu

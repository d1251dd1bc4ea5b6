// Concurrent kernels share the pool's threads. Each case runs in a separate process with the number of threads that it
// needs, regardless of the machine.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ep/runtime/thread_pool.h"
#include "tests/cpp/support/child_process.h"

namespace npu {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

// Waits for a condition; the deadline is reached only on failure.
bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

void Pause() { std::this_thread::sleep_for(std::chrono::microseconds(200)); }

// Threads that each start their own kernels; `run` gets the thread's number.
class Callers {
 public:
  Callers(int count, const std::function<void(int)>& run) {
    for (int i = 0; i < count; ++i) threads_.emplace_back(run, i);
  }
  ~Callers() { Join(); }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

// Kernels that each occupy their calling thread, and no other, until they are released.
class BusyCallers {
 public:
  explicit BusyCallers(int count)
      : callers_(count, [this](int) {
          const auto caller = std::this_thread::get_id();
          bool entered = false;
          while (!entered)  // a worker may have taken all ranges
            ParallelFor(4, 1, [&](int64_t, int64_t) {
              if (std::this_thread::get_id() != caller || entered) return;
              entered = true;
              ++entered_;
              Eventually([this] { return released_.load(); });
            });
        }) {
    CHECK(Eventually([this, count] { return entered_ == count; }));
  }
  ~BusyCallers() { released_ = true; }

 private:
  std::atomic<int> entered_{0};
  std::atomic<bool> released_{false};
  Callers callers_;
};

Ranges RangesOf(int64_t n) {
  std::mutex mutex;
  Ranges ranges;
  ParallelFor(n, 1, [&](int64_t begin, int64_t end) {
    std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

void CheckInChild(const char* test_case, const char* threads) {
  const auto child = test::RunTestCase(test_case, {{"ORT_NPU_NUM_THREADS", threads}});
  CAPTURE(child.output);
  CHECK(child.exit_code == 0);
}

}  // namespace

TEST_CASE("child: two concurrent kernels" * doctest::skip()) {
  std::atomic<int> at_work[2] = {0, 0};
  std::atomic<bool> both{false};
  Callers callers(2, [&](int self) {
    Eventually([&] {
      ParallelFor(64, 1, [&](int64_t, int64_t) {
        ++at_work[self];
        Pause();
        if (at_work[0] >= 2 && at_work[1] >= 2) both = true;
        --at_work[self];
      });
      return both.load();
    });
  });
  callers.Join();
  CHECK(both);
}
TEST_CASE("two concurrent kernels have two of four threads each") {
  CheckInChild("child: two concurrent kernels", "4");
}

TEST_CASE("child: a kernel started during another" * doctest::skip()) {
  std::atomic<int> most{0};
  CHECK(Eventually([&] {
    std::atomic<bool> first_began{false}, second_began{false};
    Callers first(1, [&](int) {
      ParallelFor(2, 1, [&](int64_t, int64_t) {
        first_began = true;
        Eventually([&] { return second_began.load(); });
      });
    });
    Eventually([&] { return first_began.load(); });
    std::atomic<int> at_work{0};
    ParallelFor(16, 1, [&](int64_t, int64_t) {
      const int now = ++at_work;
      second_began = true;
      if (now > most) most = now;
      for (int i = 0; i < 10; ++i) Pause();
      --at_work;
    });
    return most == 4;
  }));
}
TEST_CASE("a kernel started during another gets all threads once the other is done") {
  CheckInChild("child: a kernel started during another", "4");
}

TEST_CASE("child: as many kernels as threads" * doctest::skip()) {
  const BusyCallers others(3);
  for (int i = 0; i < 50; ++i) {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    ParallelFor(16, 1, [&](int64_t, int64_t) {
      Pause();
      std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
    CHECK(threads == std::set{std::this_thread::get_id()});
  }
}
TEST_CASE("as many kernels as threads get one thread each") { CheckInChild("child: as many kernels as threads", "4"); }

TEST_CASE("child: two devices" * doctest::skip()) {
  const BusyCallers others(3);
  std::atomic<bool> two{false};
  Callers(1, [&](int) {
    SetPoolDevice(1);
    Eventually([&] {
      std::atomic<int> at_work{0};
      ParallelFor(16, 1, [&](int64_t, int64_t) {
        if (++at_work >= 2) two = true;
        Pause();
        --at_work;
      });
      return two.load();
    });
  });
  CHECK(two);
}
TEST_CASE("a device has its half of the threads regardless of the other device's kernels") {
  CheckInChild("child: two devices", "4");
}

TEST_CASE("a device index outside the limit is refused") {
  CHECK_THROWS_WITH_AS(SetPoolDevice(-1), "expected a device below 64, got -1", std::exception);
  CHECK_THROWS_WITH_AS(SetPoolDevice(64), "expected a device below 64, got 64", std::exception);
}

TEST_CASE("child: eight concurrent callers" * doctest::skip()) {
  constexpr int64_t kLength = 1000;
  const Ranges alone = RangesOf(kLength);
  std::atomic<int> wrong_counts{0}, other_ranges{0}, wrong_errors{0};
  Callers callers(8, [&](int self) {
    SetPoolDevice(self % 2);
    for (int round = 0; round < 1000; ++round) {
      std::vector<int> counts(kLength);
      const int64_t length = 2 + (self * 131 + round * 17) % (kLength - 1);  // a single range would not nest
      const auto count = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          ParallelFor(2, 1, [&](int64_t b, int64_t e) { counts[static_cast<size_t>(i)] += static_cast<int>(e - b); });
      };
      ParallelFor(length, 1, count);
      for (int64_t i = 0; i < kLength; ++i) wrong_counts += counts[static_cast<size_t>(i)] != (i < length ? 2 : 0);
      if (round % 8 == 0) other_ranges += RangesOf(kLength) != alone;

      const std::string message = std::to_string(self);
      std::string caught;
      try {
        ParallelFor(100, 1, [&](int64_t begin, int64_t) {
          if (self % 2 == 0 && begin > 10) throw std::runtime_error(message);
        });
      } catch (const std::runtime_error& e) {
        caught = e.what();
      }
      wrong_errors += caught != (self % 2 == 0 ? message : "");
    }
  });
  callers.Join();
  CHECK(wrong_counts == 0);
  CHECK(other_ranges == 0);
  CHECK(wrong_errors == 0);
}
TEST_CASE("eight concurrent callers: every index once, unchanged ranges, separate exceptions") {
  for (const char* threads : {"2", "4", "7", "16"}) CheckInChild("child: eight concurrent callers", threads);
}

TEST_CASE("child: more kernels than slots" * doctest::skip()) {
  constexpr int kCallers = 40;
  const Ranges alone = RangesOf(1000);
  std::atomic<int> began{0}, other_ranges{0};
  Callers callers(kCallers, [&](int) {
    std::mutex mutex;
    Ranges ranges;
    std::atomic<bool> first{true};
    ParallelFor(1000, 1, [&](int64_t begin, int64_t end) {
      if (first.exchange(false)) {
        ++began;
        Eventually([&] { return began == kCallers; });
      }
      std::lock_guard lock(mutex);
      ranges.emplace_back(begin, end);
    });
    std::sort(ranges.begin(), ranges.end());
    other_ranges += ranges != alone;
  });
  callers.Join();
  CHECK(began == kCallers);
  CHECK(other_ranges == 0);
}
TEST_CASE("more concurrent kernels than the pool has slots still run, in the same ranges") {
  CheckInChild("child: more kernels than slots", "4");
}

TEST_CASE("child: a fork during kernels" * doctest::skip()) {
  const BusyCallers others(3);
  for (int i = 0; i < 10; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(120);
      std::atomic<int64_t> sum{0};
      for (int round = 0; round < 100; ++round) {
        ParallelFor(100, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
        PoolHelper helper;
        if (helper.Help()) _exit(2);  // a range of the parent process
      }
      _exit(sum == 10000 ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
  }
}
TEST_CASE("a child forked during kernels runs its own kernels on its only thread") {
  CheckInChild("child: a fork during kernels", "4");
}

}  // namespace npu

#include "ep/runtime/stream.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/retirement.h"
#include "ep/runtime/thread_pool.h"
#include "tests/cpp/support/child_process.h"
#include "tests/cpp/support/test_device.h"

namespace npu {

using test::Gate;
using test::OpenAtExit;
using test::TestDevice;

TEST_CASE("a launch returns before its task has run") {
  TestDevice t;
  Gate gate;
  OpenAtExit open{gate};
  std::atomic<bool> ran{false};
  t.stream().Launch("op", [&] {
    gate.Wait();
    ran = true;
  });
  CHECK_FALSE(t.stream().Query());
  CHECK_FALSE(ran);
  gate.Open();
  t.stream().Synchronize();
  CHECK(ran);
  CHECK(t.stream().Query());
}

TEST_CASE("a stream's work runs in order, also across queue chunks and during a drain") {
  TestDevice t;
  std::vector<int> order;
  for (int i = 0; i < 50000; ++i) t.stream().Launch("op", [&order, i] { order.push_back(i); });
  t.stream().Synchronize();
  std::vector<int> expected(50000);
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(order == expected);
}

TEST_CASE("several threads launch on one stream: each thread's order holds and no launch is lost") {
  constexpr int kThreads = 4, kEach = 5000;
  TestDevice t;
  std::array<int, kThreads> next{};
  int out_of_order = 0, total = 0;
  std::vector<std::thread> threads;
  for (int k = 0; k < kThreads; ++k)
    threads.emplace_back([&, k] {
      for (int i = 0; i < kEach; ++i)
        t.stream().Launch("op", [&, k, i] {
          out_of_order += next[static_cast<size_t>(k)]++ != i;
          ++total;
        });
    });
  for (std::thread& thread : threads) thread.join();
  t.stream().Synchronize();
  CHECK(total == kThreads * kEach);
  CHECK(out_of_order == 0);
}

TEST_CASE("streams run concurrently") {
  TestDevice t;
  const auto other = t.device.CreateStream();
  Gate gate;
  OpenAtExit open{gate};
  t.stream().Launch("waits", [&] { gate.Wait(); });
  other->Launch("opens", [&] { gate.Open(); });
  t.stream().Synchronize();  // would deadlock if the second stream waited for the first
  other->Synchronize();
}

TEST_CASE("copies and fills run in stream order") {
  TestDevice t;
  constexpr size_t kBytes = size_t{3} << 20;  // large enough to be split between the pool's threads
  std::vector<unsigned char> source(kBytes), back(kBytes), middle(kBytes);
  for (size_t i = 0; i < kBytes; ++i) source[i] = static_cast<unsigned char>(i * 7 + i / 251);
  auto* device = static_cast<unsigned char*>(t.allocator().Allocate(kBytes, t.stream()));
  auto* twin = static_cast<unsigned char*>(t.allocator().Allocate(kBytes, t.stream()));
  Gate gate;
  OpenAtExit open{gate};
  t.stream().Launch("gate", [&] { gate.Wait(); });
  t.stream().Copy(device, source.data(), kBytes, CopyKind::kHostToDevice);
  t.stream().Copy(twin, device, kBytes, CopyKind::kDeviceToDevice);
  t.stream().Memset(twin + 5, 0xab, 1000);
  t.stream().Copy(middle.data(), twin, kBytes, CopyKind::kDeviceToHost);
  t.stream().Copy(back.data(), middle.data(), kBytes, CopyKind::kHostToHost);
  CHECK(back == std::vector<unsigned char>(kBytes));  // no copy may have run yet
  gate.Open();
  t.stream().Synchronize();
  std::memset(source.data() + 5, 0xab, 1000);
  CHECK(back == source);
  t.allocator().Free(device);
  t.allocator().Free(twin);
}

TEST_CASE("empty copies do nothing, null addresses are errors") {
  TestDevice t;
  char byte = 0;
  t.stream().Copy(nullptr, nullptr, 0, CopyKind::kDeviceToDevice);
  t.stream().Memset(nullptr, 0, 0);
  CHECK_THROWS_AS(t.stream().Copy(nullptr, &byte, 1, CopyKind::kDeviceToDevice), Error);
  CHECK_THROWS_AS(t.stream().Copy(&byte, nullptr, 1, CopyKind::kDeviceToDevice), Error);
  CHECK_THROWS_AS(t.stream().Memset(nullptr, 0, 1), Error);
  CHECK_THROWS_AS(t.stream().Launch("op", Task()), Error);
}

TEST_CASE("pinned memory is aligned, and impossible sizes are refused") {
  TestDevice t;
  void* p = t.backend->AllocPinned(1000);
  REQUIRE(p != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(p) % 64 == 0);
  std::memset(p, 1, 1000);
  t.backend->FreePinned(p);
  CHECK(t.backend->AllocPinned(SIZE_MAX) == nullptr);
}

TEST_CASE("a host callback runs after the work before it") {
  TestDevice t;
  std::vector<int> order;
  t.stream().Launch("op", [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    order.push_back(1);
  });
  t.stream().HostCallback([&] { order.push_back(2); });
  t.stream().Launch("op", [&] { order.push_back(3); });
  t.stream().Synchronize();
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("a task may launch more work on its own stream") {
  TestDevice t;
  int depth = 0;
  std::function<void()> step = [&] {
    if (++depth < 100) t.stream().Launch("step", [&] { step(); });
  };
  t.stream().Launch("step", [&] { step(); });
  while (!t.stream().Query()) std::this_thread::yield();
  t.stream().Synchronize();
  CHECK(depth == 100);
}

TEST_CASE("destroying a stream finishes its work") {
  TestDevice t;
  int runs = 0;
  {
    const auto stream = t.device.CreateStream();
    for (int i = 0; i < 1000; ++i) stream->Launch("op", [&] { ++runs; });
  }
  FinishRetirements(*t.backend);
  CHECK(runs == 1000);
}

TEST_CASE("a task's captures are released by the time the stream is idle, whether it ran or was skipped") {
  TestDevice t;
  const auto token = std::make_shared<int>(1);
  t.stream().Launch("op", [token] {});
  t.stream().Synchronize();
  CHECK(token.use_count() == 1);
  t.stream().Launch("bad", [] { throw std::runtime_error("no"); });
  t.stream().Launch("skipped", [token] {});
  CHECK_THROWS_AS(t.stream().Synchronize(), Error);
  CHECK(token.use_count() == 1);
}

TEST_CASE("a producer waits when the stream's queue is full") {
  TestDevice t;
  Gate gate;
  OpenAtExit open{gate};
  std::atomic<int> launched{0};
  constexpr int kMany = 20000;  // exceeds the queue's capacity
  t.stream().Launch("gate", [&] { gate.Wait(); });
  std::thread producer([&] {
    for (int i = 0; i < kMany; ++i) {
      t.stream().Launch("op", [] {});
      ++launched;
    }
  });
  for (int before = -1; before != launched;) {  // until it makes no more progress
    before = launched;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  CHECK(launched < kMany);
  gate.Open();
  producer.join();
  t.stream().Synchronize();
  CHECK(launched == kMany);
}

TEST_CASE("stream identities are never reused") {
  TestDevice t;
  uint64_t last = 0;
  for (int i = 0; i < 5; ++i) {
    const auto stream = t.device.CreateStream(i);
    CHECK(stream->id() > last);
    CHECK(stream->priority() == i);
    last = stream->id();
  }
}

TEST_CASE("Device::Synchronize waits for every stream while streams are created and destroyed") {
  TestDevice t;
  std::atomic<bool> stop{false};
  std::atomic<int> runs{0};
  std::thread churn([&] {
    while (!stop) {
      const auto stream = t.device.CreateStream();
      stream->Launch("op", [&] { ++runs; });
    }
  });
  while (runs == 0) std::this_thread::yield();
  const auto slow = t.device.CreateStream();
  for (int i = 0; i < 50; ++i) {
    std::atomic<bool> done{false};
    slow->Launch("slow", [&] { done = true; });
    t.device.Synchronize();
    CHECK(done);
  }
  stop = true;
  churn.join();
}

TEST_CASE("child: a blocking launch has run and throws on return" * doctest::skip()) {
  Stream& stream = Runtime::Instance().device(0).default_stream();
  bool ran = false;
  stream.Launch("op", [&] { ran = true; });
  CHECK(ran);
  CHECK_THROWS_WITH(stream.Launch("bad", [] { throw std::runtime_error("no"); }), "[bad] no");
  int value = 0;
  stream.Memset(&value, 1, sizeof value);
  CHECK(value == 0x01010101);
}

TEST_CASE("ORT_NPU_LAUNCH_BLOCKING=1 makes launches synchronous") {
  const auto child =
      test::RunTestCase("child: a blocking launch has run and throws on return", {{"ORT_NPU_LAUNCH_BLOCKING", "1"}});
  CAPTURE(child.output);
  CHECK(child.exit_code == 0);
}

TEST_CASE("child: exits with work running" * doctest::skip()) {
  Device& device = Runtime::Instance().device(0);
  static Gate never;
  static const auto stream = device.CreateStream().release();  // like a session that is never closed
  device.default_stream().Launch("stuck", [] { never.Wait(); });
  stream->Launch("busy", [] { std::this_thread::sleep_for(std::chrono::hours(1)); });
  CHECK_FALSE(device.default_stream().Query());
}

TEST_CASE("a process exits immediately while work is running") {
  const auto child = test::RunTestCase("child: exits with work running", {}, std::chrono::seconds(20));
  CAPTURE(child.output);
  CHECK_FALSE(child.timed_out);
  CHECK(child.exit_code == 0);
}

TEST_CASE("child: a forked process gets an error and exits" * doctest::skip()) {
  Device& device = Runtime::Instance().device(0);
  auto stream = device.CreateStream();
  stream->Launch("op", [] {});
  stream->Synchronize();
  const pid_t pid = fork();
  if (pid == 0) {
    bool refused = false;
    try {
      stream->Launch("op", [] {});
    } catch (const Error& e) {
      refused = e.code() == ErrorCode::kUnsupported;
    }
    std::atomic<int> sum{0};
    ParallelFor(10, 1, [&](int64_t begin, int64_t end) { sum += static_cast<int>(end - begin); });
    delete stream.release();  // must not wait for a thread that does not exist in the child
    _exit(refused && sum == 10 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("a process forked from one that uses the NPU gets an error, not a hang") {
  const auto child = test::RunTestCase("child: a forked process gets an error and exits", {}, std::chrono::seconds(20));
  CAPTURE(child.output);
  CHECK_FALSE(child.timed_out);
  CHECK(child.exit_code == 0);
}

}  // namespace npu

// Streams whose launches return when their work is done.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ep/runtime/backend_extensions.h"
#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/stream.h"
#include "ep/runtime/thread_pool.h"
#include "tests/cpp/support/test_device.h"

namespace npu {

using test::Append;
using test::Gate;
using test::OpenAtExit;
using test::TestDevice;

namespace {

struct BlockingStream : TestDevice {
  BlockingStream() { BackendExtensions::Of(*backend).MakeBlocking(blocking->handle()); }
  std::unique_ptr<Stream> blocking = device.CreateStream(0, StreamOwner::kOne);
};

// Returns when `done` holds; fails after a minute.
template <class F>
void Await(F&& done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!done()) {
    REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST_CASE("a blocking launch runs on the thread that launches") {
  BlockingStream t;
  std::thread::id thread;
  t.blocking->Launch("op", [&] { thread = std::this_thread::get_id(); });
  CHECK(thread == std::this_thread::get_id());
  std::atomic<int64_t> sum = 0;
  t.blocking->Launch("op", [&] { ParallelFor(1000, 1, [&](int64_t begin, int64_t end) { sum += end - begin; }); });
  CHECK(sum == 1000);
}

TEST_CASE("a blocking launch runs behind what waits in its stream") {
  BlockingStream t;
  Gate gate;
  OpenAtExit open{gate};
  std::vector<int> log;
  Event first(*t.backend);
  t.stream().Launch("first", [&] {
    gate.Wait();
    log.push_back(1);
  });
  first.Record(t.stream());
  t.blocking->Wait(first);
  std::thread opener([&] { gate.Open(); });
  t.blocking->Launch("second", Append(log, 2));
  CHECK(log == std::vector<int>{1, 2});
  opener.join();
  t.blocking->Launch("third", Append(log, 3));
  CHECK(log == std::vector<int>{1, 2, 3});
}

TEST_CASE("blocking launches of several threads run one at a time") {
  BlockingStream t;
  std::atomic<int> running = 0, most = 0, runs = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        t.blocking->Launch("op", [&] {
          most = std::max(most.load(), ++running);
          ++runs;
          --running;
        });
        if (k % 50 == 0) t.blocking->HostCallback([&] { most = std::max(most.load(), running.load() + 1); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  t.blocking->Synchronize();
  CHECK(runs == 800);
  CHECK(most == 1);
}

TEST_CASE("to other threads, a stream is busy during a blocking launch") {
  BlockingStream t;
  Gate gate;
  OpenAtExit open{gate};
  std::atomic<bool> started = false, ended = false;
  std::thread launcher([&] {
    t.blocking->Launch("op", [&] {
      started = true;
      gate.Wait();
      ended = true;
    });
  });
  Await([&] { return started.load(); });
  CHECK_FALSE(t.blocking->Query());
  Event behind(*t.backend);
  behind.Record(*t.blocking);
  CHECK_FALSE(behind.Query());
  gate.Open();
  behind.Synchronize();
  CHECK(ended);
  launcher.join();
  CHECK(t.blocking->Query());
}

TEST_CASE("a blocking launch that fails stops its stream until the error is reported") {
  BlockingStream t;
  bool ran = false;
  t.blocking->Launch("Add", [] { throw std::runtime_error("expected 3, got 4"); });  // does not throw
  t.blocking->Launch("Mul", [&] { ran = true; });
  CHECK_FALSE(ran);
  CHECK_THROWS_WITH(t.blocking->Synchronize(), "[Add] expected 3, got 4");
  t.blocking->Launch("Mul", [&] { ran = true; });
  CHECK(ran);
}

TEST_CASE("an event behind a blocking launch that failed has the failure") {
  BlockingStream t;
  t.blocking->Launch("Add", [] { throw std::runtime_error("expected 3, got 4"); });
  Event behind(*t.backend);
  behind.Record(*t.blocking);
  CHECK_THROWS_WITH(behind.Synchronize(), "[Add] expected 3, got 4");
  bool ran = false;
  t.stream().Wait(behind);
  t.stream().Launch("Mul", [&] { ran = true; });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[Add] expected 3, got 4");
  CHECK_FALSE(ran);
}

TEST_CASE("a task of a blocking stream cannot wait for its own stream, but launch on it") {
  BlockingStream t;
  std::vector<int> log;
  t.blocking->Launch("outer", [&] {
    t.blocking->Launch("inner", Append(log, 2));
    log.push_back(1);
  });
  t.blocking->Synchronize();
  CHECK(log == std::vector<int>{1, 2});
  t.blocking->Launch("waits", [&] { t.blocking->Synchronize(); });
  CHECK_THROWS_WITH(t.blocking->Synchronize(),
                    "[waits] a task of a stream cannot synchronize that stream: it would wait for itself");
}

}  // namespace npu

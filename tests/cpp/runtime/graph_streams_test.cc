#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/external_event.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/launch_trace.h"
#include "ep/runtime/spin.h"
#include "tests/cpp/support/device_bytes.h"
#include "tests/cpp/support/test_device.h"
#include "tests/cpp/support/watched_backend.h"

namespace npu {
namespace {

using test::Append;
using test::Gate;
using test::OpenAtExit;
using Setting = test::DeviceWithSideStream;

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// A task that waits for `flag` with a timeout.
Task Expect(const std::atomic<bool>& flag) {
  return Task([&flag] {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!flag && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (!flag) throw std::runtime_error("waited in vain");
  });
}

Task SetFlag(std::atomic<bool>& flag) {
  return Task([&flag] { flag = true; });
}

// `other` forks from `origin` for `f`, and is joined back.
template <class F>
void Beside(Stream& origin, Stream& other, F&& f) {
  Event fork(origin.device().backend()), join(origin.device().backend());
  fork.Record(origin);
  other.Wait(fork);
  f();
  join.Record(other);
  origin.Wait(join);
}

// Between the two parts in which a replay is enqueued, work of another thread gets into the stream, and fails.
class Interrupting : public test::WatchedBackend {
 public:
  Interrupting() : WatchedBackend(kLimit) {}
  static constexpr size_t kLimit = size_t{1} << 28;
  std::atomic<bool> armed{false};

  void LaunchHost(BackendStream* s, const char* op, Task task) override {
    WatchedBackend::LaunchHost(s, op, std::move(task));
    Interrupt(s);
  }
  void LaunchAlways(BackendStream* s, const char* op, std::function<void(const Status&)> task) override {
    WatchedBackend::LaunchAlways(s, op, std::move(task));
    Interrupt(s);
  }

 private:
  void Interrupt(BackendStream* s) {
    if (armed.exchange(false)) Launch(s, "bad", Task([] { throw std::runtime_error("no luck"); }), 0);
  }
};

struct TwoDevices {
  static constexpr size_t kLimit = size_t{1} << 28;
  std::unique_ptr<Backend> backend = MakeHostBackend({2, kLimit, "test device"});
  Device first{*backend, 0, kLimit}, second{*backend, 1, kLimit};
};

}  // namespace

TEST_CASE("graph: a stream that waits for a captured event joins the capture and must be joined back") {
  Setting t;
  auto other = t.device.CreateStream();
  std::vector<int> log;
  Event fork(*t.backend), join(*t.backend);
  Graph graph;
  graph.CaptureBegin(*t.side);
  t.side->Launch("first", Append(log, 1));
  fork.Record(*t.side);
  other->Wait(fork);
  CHECK(Graph::IsCapturing(*other));
  other->Launch("second", Append(log, 2));
  join.Record(*other);
  t.side->Wait(join);
  t.side->Launch("third", Append(log, 3));
  graph.CaptureEnd(*t.side);
  CHECK_FALSE(Graph::IsCapturing(*other));
  graph.Replay(t.stream());
  t.stream().Synchronize();
  CHECK(log == std::vector<int>{1, 2, 3});
  const std::string json = graph.Json();
  CHECK(Has(json, "{\"id\": 1, \"op\": \"second\""));
  CHECK(Has(json, "\"after\": [0, 1]}"));

  Graph open;
  open.CaptureBegin(*t.side);
  fork.Record(*t.side);
  other->Wait(fork);
  other->Launch("lost", Append(log, 4));
  CHECK_THROWS_WITH_AS(open.CaptureEnd(*t.side), doctest::Contains("unjoined"), Error);
  CHECK_FALSE(open.captured());
  CHECK_FALSE(Graph::IsCapturing(*other));
  open.CaptureBegin(*t.side);  // usable again
  open.CaptureEnd(*t.side);
}

TEST_CASE("graph: streams that were concurrent in the capture are concurrent in a replay") {
  Setting t;
  auto other = t.device.CreateStream();
  std::atomic<bool> here{false}, there{false};
  std::vector<int> log;
  Graph graph;
  graph.CaptureBegin(*t.side);
  t.side->Launch("clear", Task([&] { here = there = false; }));
  Beside(*t.side, *other, [&] {
    other->Launch("there", SetFlag(there));
    other->Launch("wait_here", Expect(here));
    t.side->Launch("wait_there", Expect(there));
    t.side->Launch("here", SetFlag(here));
  });
  t.side->Launch("after", Append(log, 1));
  graph.CaptureEnd(*t.side);
  for (Stream* stream : {&t.stream(), t.side.get(), &t.stream()}) {
    graph.Replay(*stream);
    stream->Launch("behind", Append(log, 2));
    stream->Synchronize();
  }
  CHECK(log == std::vector<int>{1, 2, 1, 2, 1, 2});
}

TEST_CASE("graph: branches of a replay keep their event order") {
  Setting t;
  std::vector<std::unique_ptr<Stream>> others;
  for (int i = 0; i < 3; ++i) others.push_back(t.device.CreateStream());
  int64_t value = 0;
  std::vector<int64_t> seen(3);
  Graph graph;
  graph.CaptureBegin(*t.side);
  for (int round = 0; round < 50; ++round) {
    t.side->Launch("add", Task([&] { ++value; }));
    for (size_t i = 0; i < others.size(); ++i) {
      Event fork(*t.backend);
      fork.Record(*t.side);
      others[i]->Wait(fork);
      others[i]->Launch("see", Task([&, i] { seen[i] += value; }));
    }
    for (const auto& other : others) {
      Event join(*t.backend);
      join.Record(*other);
      t.side->Wait(join);
    }
  }
  graph.CaptureEnd(*t.side);
  for (int replay = 0; replay < 20; ++replay) {
    value = 0;
    seen.assign(3, 0);
    graph.Replay(replay % 2 == 0 ? *t.side : t.stream());
    (replay % 2 == 0 ? *t.side : t.stream()).Synchronize();
    CHECK(seen == std::vector<int64_t>(3, 50 * 51 / 2));
  }
}

TEST_CASE("graph: a failing branch fails the whole replay, and the next replay runs") {
  Setting t;
  auto other = t.device.CreateStream();
  bool fails = true;
  int after = 0, always = 0;
  std::vector<Status> told;
  Graph graph;
  graph.CaptureBegin(*t.side);
  Beside(*t.side, *other, [&] {
    t.side->Launch("fine", Task([] {}));
    other->Launch("bad", Task([&] {
                    if (fails) throw std::runtime_error("no luck");
                  }));
    other->LaunchAlways("signal", [&](const Status& status) { told.push_back(status); });
  });
  t.side->Launch("after", Task([&] { ++after; }));
  t.side->LaunchAlways("always", [&](const Status&) { ++always; });
  graph.CaptureEnd(*t.side);
  graph.Replay(t.stream());
  CHECK_THROWS_WITH_AS(t.stream().Synchronize(), "[graph] [bad] no luck", Error);
  CHECK(after == 0);
  CHECK(always == 1);
  REQUIRE(told.size() == 1);
  CHECK(told[0] != nullptr);
  fails = false;
  graph.Replay(t.stream());
  t.stream().Synchronize();
  CHECK(after == 1);
  CHECK(told[1] == nullptr);
}

TEST_CASE("graph: a replay on a failed stream signals its events as failures") {
  Setting t;
  auto waiter = t.device.CreateStream();
  ExternalEvent external;
  Graph graph;
  graph.CaptureBegin(*t.side);
  t.side->Launch("work", Task([] {}));
  external.Record(*t.side);
  graph.CaptureEnd(*t.side);
  t.side->Launch("bad", Task([] { throw std::runtime_error("no luck"); }));
  graph.Replay(*t.side);
  external.Wait(*waiter);
  CHECK_THROWS_WITH_AS(waiter->Synchronize(), "[bad] no luck", Error);
  CHECK_THROWS_WITH_AS(t.side->Synchronize(), "[bad] no luck", Error);
  graph.Replay(*t.side);
  external.Wait(*waiter);
  waiter->Synchronize();
}

TEST_CASE("graph: a failure of other work while a replay is enqueued loses none of its events") {
  Interrupting backend;
  Device device(backend, 0, Interrupting::kLimit);
  const auto side = device.CreateStream(), waiter = device.CreateStream();
  ExternalEvent external;
  Graph graph;
  graph.CaptureBegin(*side);
  external.Record(*side);
  graph.CaptureEnd(*side);
  backend.armed = true;
  graph.Replay(*side);
  external.Wait(*waiter);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!waiter->Query() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  CHECK(waiter->Query());
  external.Record(device.default_stream());  // ends a wait in vain
  waiter->Synchronize();
  CHECK_THROWS_WITH_AS(side->Synchronize(), "[bad] no luck", Error);
}

TEST_CASE("graph: a trace shows the parts of every branch") {
  Setting t;
  auto other = t.device.CreateStream();
  Graph graph;
  graph.CaptureBegin(*t.side);
  Beside(*t.side, *other, [&] {
    other->Launch("there", Task([] {}));
    t.side->Launch("here", Task([] {}));
  });
  graph.CaptureEnd(*t.side);
  REQUIRE(LaunchTrace::Start());
  graph.Replay(*t.side);
  std::string parts;
  for (const LaunchSpan& span : LaunchTrace::Stop())
    if (span.is_part) parts += span.op + " ";
  CHECK((parts == "here there " || parts == "there here "));
}

TEST_CASE("graph: a capture has a private pool on every participating device") {
  TwoDevices t;
  auto origin = t.first.CreateStream(), far = t.second.CreateStream();
  std::vector<char> result(64);
  Graph graph;
  void* temporary = nullptr;
  graph.CaptureBegin(*origin, {0, 7});
  Beside(*origin, *far, [&] {
    temporary = t.second.allocator().Allocate(64, *far);
    far->Memset(temporary, 5, 64);
    far->Copy(result.data(), temporary, 64, CopyKind::kDeviceToHost);
    t.second.allocator().Free(temporary);
  });
  CHECK_THROWS_WITH_AS(t.second.Synchronize(), doctest::Contains("synchronize of the device"), Error);
  CHECK_THROWS_AS(graph.CaptureEnd(*origin), Error);
  CHECK(t.first.allocator().PoolUseCount({0, 7}) == 0);
  CHECK(t.second.allocator().PoolUseCount({0, 7}) == 0);

  graph.CaptureBegin(*origin, {0, 7});
  Beside(*origin, *far, [&] {
    temporary = t.second.allocator().Allocate(64, *far);
    far->Memset(temporary, 5, 64);
    far->Copy(result.data(), temporary, 64, CopyKind::kDeviceToHost);
    t.second.allocator().Free(temporary);
  });
  graph.CaptureEnd(*origin);
  CHECK(t.first.allocator().PoolUseCount({0, 7}) == 1);
  CHECK(t.second.allocator().PoolUseCount({0, 7}) == 1);
  void* later = t.second.allocator().Allocate(64, *far);
  CHECK(later != temporary);
  far->Memset(later, 9, 64);
  far->Synchronize();
  graph.Replay(*origin);
  origin->Synchronize();
  CHECK(result == std::vector<char>(64, 5));
  CHECK(test::ReadByte(*t.backend, later) == 9);
  t.second.allocator().Free(later);
  graph.Reset();
  CHECK(t.first.allocator().PoolUseCount({0, 7}) == 0);
  CHECK(t.second.allocator().PoolUseCount({0, 7}) == 0);
}

}  // namespace npu

// Which call reports a failure, and when a stream runs again: docs/decisions/0012.
#include "ep/runtime/status.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/external_event.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/outstanding.h"
#include "ep/runtime/retirement.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using test::Gate;
using test::OpenAtExit;
using test::TestDevice;

void Break(Stream& stream) {
  stream.Launch("bad", [] { throw std::runtime_error("no"); });
}

template <class F>
void OnAnotherThread(F&& f) {
  std::thread([&] { f(); }).join();
}

}  // namespace

TEST_CASE("status: an event after a failure reports it to every caller, every time") {
  TestDevice t;
  Event event(*t.backend);
  Break(t.stream());
  event.Record(t.stream());
  CHECK_THROWS_WITH(event.Synchronize(), "[bad] no");
  OnAnotherThread([&] { CHECK_THROWS_WITH(event.Synchronize(), "[bad] no"); });
  CHECK_THROWS_WITH(event.Query(), "[bad] no");
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");  // still pending on the stream
  CHECK_THROWS_WITH(event.Synchronize(), "[bad] no");       // and for this record, regardless of later work
  event.Record(t.stream());
  event.Synchronize();
}

TEST_CASE("status: a stream that waits for failed work skips its own and carries the failure on") {
  TestDevice t;
  const auto second = t.device.CreateStream(), third = t.device.CreateStream();
  Event first_done(*t.backend), second_done(*t.backend);
  bool ran = false;
  Break(t.stream());
  first_done.Record(t.stream());
  second->Wait(first_done);
  second->Launch("op", [&] { ran = true; });
  second_done.Record(*second);
  third->Wait(second_done);
  third->Launch("op", [&] { ran = true; });
  CHECK_THROWS_WITH(third->Synchronize(), "[bad] no");
  CHECK_THROWS_WITH(second->Synchronize(), "[bad] no");
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
  CHECK_FALSE(ran);
  third->Launch("op", [&] { ran = true; });
  third->Synchronize();
  CHECK(ran);
}

TEST_CASE("status: an event that passed before the wait was enqueued carries its failure, too") {
  TestDevice t;
  const auto second = t.device.CreateStream();
  Event event(*t.backend);
  Break(t.stream());
  event.Record(t.stream());
  CHECK_THROWS_AS(event.Synchronize(), Error);
  second->Wait(event);
  CHECK_THROWS_WITH(second->Synchronize(), "[bad] no");
  CHECK_THROWS_AS(t.stream().Synchronize(), Error);
}

TEST_CASE("status: a wait by a thread that launched nothing does not clear the error for the thread that did") {
  TestDevice t;
  bool ran = false;
  Break(t.stream());
  OnAnotherThread([&] {
    CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
    CHECK_THROWS_WITH(t.device.Synchronize(), "[bad] no");
  });
  t.stream().Launch("op", [&] { ran = true; });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
  CHECK_FALSE(ran);
  OnAnotherThread([&] { t.stream().Synchronize(); });  // already reported
  t.stream().Synchronize();
}

TEST_CASE("status: one of the threads sharing a stream resumes it, the others get the error at their next call") {
  TestDevice t;
  std::atomic<int> step{0};
  const auto reach = [&](int n) {
    step = n;
    step.notify_all();
  };
  const auto await = [&](int n) {
    for (int seen; (seen = step.load()) < n;) step.wait(seen);
  };
  std::thread other([&] {
    t.stream().Launch("op", [] {});
    reach(1);
    await(2);
    bool ran = false;
    CHECK_THROWS_WITH(t.stream().Launch("op", [&] { ran = true; }), "[bad] no");
    t.stream().Launch("op", [&] { ran = true; });
    t.stream().Synchronize();
    CHECK(ran);
  });
  await(1);
  Break(t.stream());
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
  bool ran = false;
  t.stream().Launch("op", [&] { ran = true; });
  t.stream().Synchronize();
  CHECK(ran);
  reach(2);
  other.join();
}

TEST_CASE("status: a device wait leaves a failure pending for a thread whose stream has only waited for it") {
  TestDevice t;
  const auto shared = t.device.CreateStream();
  ExternalEvent external;
  Event failed(*t.backend);
  bool ran = false;
  for (const bool by_event : {true, false}) {
    Break(t.stream());
    if (by_event) {
      failed.Record(t.stream());
      shared->Wait(failed);
    } else {
      external.Wait(*shared);
      external.Record(t.stream());
    }
    OnAnotherThread([&] { CHECK_THROWS_WITH(t.device.Synchronize(), "[bad] no"); });
    shared->Launch("op", [&] { ran = true; });
    CHECK_THROWS_WITH(shared->Synchronize(), "[bad] no");
    CHECK_FALSE(ran);
    CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
  }
}

TEST_CASE("status: an event recorded after skipped work does not report success") {
  TestDevice t;
  bool ran = false;
  const auto launch_behind_a_failure = [&] {
    Gate gate;
    std::thread other([&] {
      Break(t.stream());
      gate.Wait();
      CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
    });
    while (!t.backend->StreamQuery(t.stream().handle()) || t.backend->StreamSynchronize(t.stream().handle()) == nullptr)
      std::this_thread::yield();
    t.stream().Launch("op", [&] { ran = true; });
    gate.Open();
    other.join();
  };
  Event event(*t.backend);
  launch_behind_a_failure();
  CHECK_THROWS_WITH(event.Record(t.stream()), "[bad] no");
  event.Record(t.stream());
  event.Synchronize();
  const auto side = t.device.CreateStream();
  side->Launch("op", [] {});
  event.Record(*side);
  launch_behind_a_failure();
  CHECK_THROWS_WITH(t.stream().Wait(event), "[bad] no");
  CHECK_FALSE(ran);
}

TEST_CASE("status: the error of a thread that ended is reported to any thread") {
  TestDevice t;
  OnAnotherThread([&] { Break(t.stream()); });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
  t.stream().Synchronize();
}

TEST_CASE("status: errors of a thread that launches for others are reported to the thread it works for") {
  TestDevice t;
  t.stream().Launch("op", [] {});
  t.stream().Synchronize();
  std::atomic<int> step{0};
  std::thread backward([&] {
    SetWorksForOthers(true);
    Break(t.stream());
    step = 1;
    step.notify_all();
    step.wait(1);
    bool ran = false;
    t.stream().Launch("op", [&] { ran = true; });  // does not get the error itself
    t.stream().Synchronize();
    CHECK(ran);
  });
  step.wait(0);
  OnAnotherThread([&] { CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no"); });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
  step = 2;
  step.notify_all();
  backward.join();
}

TEST_CASE("status: only the owner resumes a stream with a single owner") {
  TestDevice t;
  const auto run = t.device.CreateStream(0, StreamOwner::kOne);
  Break(*run);
  CHECK_THROWS_WITH(t.device.Synchronize(), "[bad] no");
  CHECK_THROWS_WITH(t.device.Synchronize(), "[bad] no");
  CHECK_THROWS_WITH(run->Synchronize(), "[bad] no");
  t.device.Synchronize();
  run->Synchronize();
}

TEST_CASE("status: a wait for the device reports each failure, in the order of the streams") {
  TestDevice t;
  const auto other = t.device.CreateStream();
  t.stream().Launch("bad", [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // fails last
    throw std::runtime_error("no");
  });
  other->Launch("worse", [] { throw std::runtime_error("never"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_THROWS_WITH(t.device.Synchronize(), "[bad] no; and on another stream: [worse] never");
  t.device.Synchronize();
}

TEST_CASE("status: LaunchAlways work runs after a failure and receives its status") {
  TestDevice t;
  std::string told;
  Break(t.stream());
  t.stream().LaunchAlways("free", [&](const Status& status) { told = status->message; });
  CHECK_THROWS_AS(t.stream().Synchronize(), Error);
  CHECK(told == "[bad] no");
  bool fine = false;
  t.stream().LaunchAlways("free", [&](const Status& status) { fine = status == nullptr; });
  t.stream().Synchronize();
  CHECK(fine);
}

TEST_CASE("status: an external event recorded after a failure fails its waiter instead of blocking it") {
  TestDevice t;
  const auto other = t.device.CreateStream();
  ExternalEvent event;
  Break(t.stream());
  event.Record(t.stream());
  event.Wait(*other);
  CHECK_THROWS_WITH(other->Synchronize(), "[bad] no");
  CHECK_THROWS_AS(t.stream().Synchronize(), Error);
  event.Wait(*other);  // the failed wait has consumed the record
  Event passed(*t.backend);
  passed.Record(*other);
  CHECK_FALSE(passed.Query());
  event.Record(t.stream());
  passed.Synchronize();
}

TEST_CASE("status: a graph whose node failed still signals what it was captured to signal") {
  TestDevice t;
  const auto side = t.device.CreateStream(), other = t.device.CreateStream();
  ExternalEvent event;
  Graph graph;
  bool ran = false;
  graph.CaptureBegin(*side);
  Break(*side);
  side->Launch("op", [&] { ran = true; });
  event.Record(*side);
  graph.CaptureEnd(*side);
  graph.Replay(*side);
  event.Wait(*other);
  CHECK_THROWS_WITH(other->Synchronize(), "[graph] [bad] no");
  CHECK_THROWS_WITH(side->Synchronize(), "[graph] [bad] no");
  CHECK_FALSE(ran);
}

TEST_CASE("status: a thread's next work follows, and inherits failures of, work it left on other streams") {
  TestDevice t;
  const auto run = t.device.CreateStream(0, StreamOwner::kOne);
  Gate gate;
  OpenAtExit open{gate};
  std::atomic<bool> done{false};
  run->Launch("gate", [&] { gate.Wait(); });
  run->Launch("op", [&] { done = true; });
  auto end = std::make_shared<Event>(*t.backend);
  end->Record(*run);
  Outstanding::Add(t.device, end);
  bool behind = false;
  t.stream().Launch("op", [&] { behind = done; });
  OnAnotherThread([&] {  // other threads are not blocked
    bool ran = false;
    const auto free = t.device.CreateStream();
    free->Launch("op", [&] { ran = true; });
    free->Synchronize();
    CHECK(ran);
  });
  gate.Open();
  t.stream().Synchronize();
  CHECK(behind);
  CHECK_FALSE(Outstanding::Any());

  Break(*run);
  end->Record(*run);
  Outstanding::Add(t.device, end);
  OnAnotherThread([&] { CHECK_THROWS_WITH(t.device.Synchronize(), "[bad] no"); });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
  t.stream().Synchronize();
  CHECK_THROWS_AS(run->Synchronize(), Error);
}

TEST_CASE("status: a failure left by a thread that has ended is reported by the next wait for the device") {
  TestDevice t;
  const auto run = t.device.CreateStream(0, StreamOwner::kOne);
  Break(*run);
  OnAnotherThread([&] {
    const auto end = std::make_shared<Event>(*t.backend);
    end->Record(*run);
    Outstanding::Add(t.device, end);
  });
  CHECK_THROWS_WITH(run->Synchronize(), "[bad] no");
  CHECK_THROWS_WITH(t.device.Synchronize(), "[bad] no");
  t.device.Synchronize();
}

TEST_CASE("status: work after an event that follows a failed run is skipped") {
  TestDevice t;
  const auto run = t.device.CreateStream(0, StreamOwner::kOne);
  const auto end = std::make_shared<Event>(*t.backend);
  Break(*run);
  end->Record(*run);
  Outstanding::Add(t.device, end);
  Event event(*t.backend);
  SUBCASE("by the record of an event") { event.Record(t.stream()); }
  SUBCASE("by a launch that cannot fail") {
    t.stream().LaunchAlways("op", [](const Status&) {});
  }
  OnAnotherThread([&] { CHECK_THROWS_WITH(t.device.Synchronize(), "[bad] no"); });
  bool ran = false;
  t.stream().Launch("op", [&] { ran = true; });
  CHECK_THROWS_WITH(t.stream().Synchronize(), "[bad] no");
  CHECK_FALSE(ran);
  CHECK_THROWS_AS(run->Synchronize(), Error);
}

TEST_CASE("status: a late report of a failure does not affect later work") {
  StreamUsers users(/*stream_id=*/0);
  const Status status = MakeFailure("[bad] no");
  int resumed = 0;
  const auto resume = [&] { ++resumed; };
  users.BeforeWork();
  users.AfterFailure(status, resume);
  CHECK(resumed == 1);
  OnAnotherThread([&] { users.AfterFailure(status, resume); });  // a late report of the same failure
  CHECK(resumed == 1);

  const Status again = Arrival(*status);  // the same failure can reach a stream twice
  users.BeforeWork();
  users.AfterFailure(again, resume);
  CHECK(resumed == 2);
}

TEST_CASE("status: a wait reports failures of its stream and of work the thread left on other streams") {
  TestDevice t;
  std::vector<std::unique_ptr<Stream>> runs;
  std::vector<std::shared_ptr<Event>> ends;
  for (const char* op : {"run a", "run b"}) {
    runs.push_back(t.device.CreateStream(0, StreamOwner::kOne));
    runs.back()->Launch(op, [] { throw std::runtime_error("no"); });
    ends.push_back(std::make_shared<Event>(*t.backend));
    t.backend->EventRecord(ends.back()->handle(), runs.back()->handle());
    t.backend->StreamResume(runs.back()->handle(), nullptr);
  }
  Break(t.stream());  // before Outstanding::Add: later work would wait for those runs
  for (const auto& end : ends) Outstanding::Add(t.device, end);
  CHECK_THROWS_WITH(t.stream().Synchronize(),
                    "[bad] no; and on another stream: [run a] no; and on another stream: [run b] no");
  t.stream().Synchronize();
}

TEST_CASE("destroying a stream with blocked work does not wait") {
  TestDevice t;
  Gate gate;
  OpenAtExit open{gate};
  std::atomic<bool> ran{false};
  auto stream = t.device.CreateStream();
  void* memory = t.allocator().Allocate(1 << 20, *stream);
  stream->Launch("gate", [&] { gate.Wait(); });
  stream->Launch("op", [&] { ran = true; });
  t.allocator().Free(memory);
  stream.reset();  // returns
  CHECK_FALSE(ran);
  gate.Open();
  FinishRetirements(*t.backend);
  CHECK(ran);
  t.allocator().EmptyCache();
  CHECK(t.allocator().Stats().reserved_bytes.all.current == 0);
}

TEST_CASE("a wait for the device covers streams that were destroyed while they were busy") {
  TestDevice t;
  Gate gate;
  OpenAtExit open{gate};
  std::atomic<bool> ran{false};
  auto stream = t.device.CreateStream();
  stream->Launch("gate", [&] { gate.Wait(); });
  stream->Launch("op", [&] { ran = true; });
  stream.reset();
  std::thread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate.Open();
  });
  t.device.Synchronize();
  CHECK(ran);
  opens.join();
}

TEST_CASE("a producer of copies that hold host memory waits at a bound") {
  TestDevice t;
  constexpr size_t kHeld = size_t{1} << 20;
  Gate gate;
  OpenAtExit open{gate};
  t.stream().Launch("gate", [&] { gate.Wait(); });
  std::atomic<size_t> queued{0};
  std::thread producer([&] {
    for (int i = 0; i < 256; ++i) {
      t.stream().Launch("copy", Task([] {}), kHeld);
      ++queued;
    }
  });
  for (size_t before = 1, now = 0; before != now || now < 32;
       std::this_thread::sleep_for(std::chrono::milliseconds(50)))
    before = now, now = queued;
  CHECK(queued < 128);
  gate.Open();
  producer.join();
  t.stream().Synchronize();
  CHECK(queued == 256);
}

}  // namespace npu

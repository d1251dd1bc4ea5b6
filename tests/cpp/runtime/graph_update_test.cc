#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/graph_recording.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using test::TestDevice;

struct Setting : TestDevice {
  std::unique_ptr<Stream> side = device.CreateStream();
};

Task Append(std::vector<int>& log, int value) {
  return Task([&log, value] { log.push_back(value); });
}

}  // namespace

TEST_CASE("graph: a task group is updated between replays, by the same operators in the same order") {
  Setting t;
  std::vector<int> log;
  Graph graph;
  CHECK_THROWS_AS(Graph::BeginGroup(*t.side), Error);
  graph.CaptureBegin(*t.side);
  t.side->Launch("a", Append(log, 1));
  Graph::BeginGroup(*t.side);
  t.side->Launch("b", Append(log, 2));
  t.side->Launch("c", Append(log, 3));
  const GraphTaskGroup group = Graph::EndGroup(*t.side);
  CHECK_THROWS_AS(Graph::EndGroup(*t.side), Error);
  CHECK_THROWS_AS(Graph::BeginUpdate(*t.side, group), Error);
  graph.CaptureEnd(*t.side);
  CHECK_THROWS_AS(Graph::EndUpdate(*t.side), Error);
  Graph::BeginUpdate(*t.side, group);
  t.side->Launch("b", Append(log, 20));
  t.side->Launch("c", Append(log, 30));
  Graph::EndUpdate(*t.side);
  graph.Replay(*t.side);
  t.side->Synchronize();
  CHECK(log == std::vector<int>{1, 20, 30});
  Graph::BeginUpdate(*t.side, group);
  CHECK_THROWS_WITH_AS(t.side->Launch("x", Append(log, 0)), doctest::Contains("expected to update b, got x"), Error);
  CHECK_THROWS_AS(Graph::EndUpdate(*t.side), Error);
  Graph::BeginUpdate(*t.side, group);
  t.side->Launch("b", Append(log, 20));
  CHECK_THROWS_WITH_AS(Graph::EndUpdate(*t.side), doctest::Contains("1 more"), Error);
  graph.Reset();
  CHECK_THROWS_WITH_AS(Graph::BeginUpdate(*t.side, group), doctest::Contains("still there"), Error);
}

TEST_CASE("graph: an update is atomic") {
  Setting t;
  std::vector<int> log;
  Graph graph;
  graph.CaptureBegin(*t.side);
  Graph::BeginGroup(*t.side);
  t.side->Launch("a", Append(log, 1));
  t.side->Launch("b", Append(log, 2));
  const GraphTaskGroup group = Graph::EndGroup(*t.side);
  graph.CaptureEnd(*t.side);
  Graph::BeginUpdate(*t.side, group);
  t.side->Launch("a", Append(log, 10));
  CHECK_THROWS_AS(Graph::EndUpdate(*t.side), Error);
  graph.Replay(*t.side);
  t.side->Synchronize();
  CHECK(log == std::vector<int>{1, 2});
}

TEST_CASE("graph: task groups of two streams can be open together and record their own launches") {
  Setting t;
  auto other = t.device.CreateStream();
  int mine = 0, its = 0;
  Event fork(*t.backend), join(*t.backend);
  Graph graph;
  graph.CaptureBegin(*t.side);
  fork.Record(*t.side);
  other->Wait(fork);
  Graph::BeginGroup(*t.side);
  Graph::BeginGroup(*other);
  t.side->Launch("here", Task([&] { mine = 1; }));
  other->Launch("there", Task([&] { its = 2; }));
  const GraphTaskGroup here = Graph::EndGroup(*t.side), there = Graph::EndGroup(*other);
  CHECK(here.size == 1);
  CHECK(there.size == 1);
  join.Record(*t.side);
  other->Wait(join);
  join.Record(*other);
  t.side->Wait(join);
  graph.CaptureEnd(*t.side);
  Graph::BeginUpdate(*t.side, there);
  t.side->Launch("there", Task([&] { its = 20; }));
  Graph::EndUpdate(*t.side);
  graph.Replay(*t.side);
  t.side->Synchronize();
  CHECK(mine == 1);
  CHECK(its == 20);
}

TEST_CASE("graph: a replayed task may launch work while another thread updates it") {
  Setting t;
  auto other = t.device.CreateStream(), updates = t.device.CreateStream();
  std::atomic<bool> running{false}, updated{false};
  std::atomic<int> launched{0}, instead{0};
  Graph graph;
  graph.CaptureBegin(*t.side);
  Graph::BeginGroup(*t.side);
  t.side->Launch("a", Task([&] {
                   running = true;
                   for (int i = 0; i < 200 && !updated; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                   other->Launch("more", Task([&] { ++launched; }));
                 }));
  const GraphTaskGroup group = Graph::EndGroup(*t.side);
  graph.CaptureEnd(*t.side);
  Graph::BeginUpdate(*updates, group);
  graph.Replay(*t.side);
  while (!running) std::this_thread::yield();
  updates->Launch("a", Task([&] { ++instead; }));
  Graph::EndUpdate(*updates);
  CHECK(launched == 0);  // the task still runs, and the update did not wait for it
  updated = true;
  t.side->Synchronize();
  other->Synchronize();
  CHECK(launched == 1);
  graph.Replay(*t.side);
  t.side->Synchronize();
  CHECK(instead == 1);
}

TEST_CASE("graph: objects kept by an update are released by the next update") {
  Setting t;
  Graph graph;
  graph.CaptureBegin(*t.side);
  Graph::BeginGroup(*t.side);
  t.side->Launch("a", Task([] {}));
  const GraphTaskGroup group = Graph::EndGroup(*t.side);
  graph.CaptureEnd(*t.side);
  std::vector<std::weak_ptr<int>> kept;
  for (int i = 0; i < 3; ++i) {
    auto object = std::make_shared<int>(i);
    kept.push_back(object);
    Graph::BeginUpdate(*t.side, group);
    CHECK(Recording::Keep(*t.side, object));
    t.side->Launch("a", Task([] {}));
    Graph::EndUpdate(*t.side);
  }
  CHECK(kept[0].expired());
  CHECK(kept[1].expired());
  CHECK_FALSE(kept[2].expired());
}

}  // namespace npu

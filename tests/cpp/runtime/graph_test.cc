#include "ep/runtime/graph.h"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph_recording.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using test::Gate;
using test::OpenAtExit;
using test::TestDevice;

constexpr size_t kMiB = size_t{1} << 20;

struct Setting : TestDevice {
  std::unique_ptr<Stream> side = device.CreateStream();
};

Task Append(std::vector<int>& log, int value) {
  return Task([&log, value] { log.push_back(value); });
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("graph: captured launches run at replays only, in order, as often as replayed") {
  Setting t;
  std::vector<int> log;
  Graph graph;
  graph.CaptureBegin(*t.side);
  CHECK(Graph::IsCapturing(*t.side));
  CHECK_FALSE(Graph::IsCapturing(t.stream()));
  for (int i = 0; i < 3; ++i) t.side->Launch("append", Append(log, i));
  t.stream().Launch("outside", Append(log, 100));  // other streams go on as ever
  t.stream().Synchronize();
  CHECK(log == std::vector<int>{100});
  graph.CaptureEnd(*t.side);
  CHECK_FALSE(Graph::IsCapturing(*t.side));
  CHECK(graph.size() == 3);
  t.side->Synchronize();
  CHECK(log == std::vector<int>{100});
  graph.Replay(*t.side);
  t.side->Synchronize();
  graph.Replay(t.stream());
  t.stream().Synchronize();
  CHECK(log == std::vector<int>{100, 0, 1, 2, 0, 1, 2});
}

TEST_CASE("graph: copies and fills are captured with their addresses") {
  Setting t;
  std::vector<char> from(64, 'a'), to(64, 'b');
  Graph graph;
  graph.CaptureBegin(*t.side);
  t.side->Copy(to.data(), from.data(), 32, CopyKind::kHostToHost);
  t.side->Memset(to.data() + 32, 'z', 32);
  graph.CaptureEnd(*t.side);
  CHECK(to == std::vector<char>(64, 'b'));
  from.assign(64, 'q');
  graph.Replay(*t.side);
  t.side->Synchronize();
  CHECK(std::string(to.begin(), to.end()) == std::string(32, 'q') + std::string(32, 'z'));
}

TEST_CASE("graph: memory of a capture is in its pool; a replay allocates nothing and nobody else gets it") {
  Setting t;
  CachingAllocator& a = t.allocator();
  Graph graph;
  graph.CaptureBegin(*t.side);
  void* scratch = a.Allocate(3 * kMiB, *t.side);
  a.Free(scratch);
  void* again = a.Allocate(3 * kMiB, *t.side);
  CHECK(again == scratch);  // in order, as without a capture
  a.Free(again);
  void* elsewhere = a.Allocate(3 * kMiB, t.stream());
  graph.CaptureEnd(*t.side);
  CHECK(elsewhere != scratch);
  CHECK(a.PoolUseCount(graph.pool()) == 1);
  void* after = a.Allocate(3 * kMiB, *t.side);
  CHECK(after != scratch);
  a.EmptyCache();
  const int64_t reserved = a.Stats().reserved_bytes.all.current;
  const int64_t allocations = a.Stats().allocation.all.allocated;
  graph.Replay(*t.side);
  t.side->Synchronize();
  CHECK(a.Stats().allocation.all.allocated == allocations);
  const PoolId pool = graph.pool();
  graph.Reset();
  CHECK(a.PoolUseCount(pool) == 0);
  a.EmptyCache();
  CHECK(a.Stats().reserved_bytes.all.current == reserved - static_cast<int64_t>(20 * kMiB));
  a.Free(elsewhere);
  a.Free(after);
}

TEST_CASE("graph: two graphs share a pool") {
  Setting t;
  Graph first, second;
  first.CaptureBegin(*t.side, {0, 5});
  void* p = t.allocator().Allocate(2 * kMiB, *t.side);
  t.allocator().Free(p);
  first.CaptureEnd(*t.side);
  second.CaptureBegin(*t.side, first.pool());
  CHECK(t.allocator().Allocate(2 * kMiB, *t.side) == p);
  t.allocator().Free(p);
  second.CaptureEnd(*t.side);
  CHECK(second.pool() == PoolId{0, 5});
  CHECK(t.allocator().PoolUseCount({0, 5}) == 2);
}

TEST_CASE("graph: a stream that waits for an event of the capture joins it, and must be joined back") {
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

TEST_CASE("graph: what waits for a capturing stream is refused and spoils the capture") {
  Setting t;
  const auto spoil = [&](auto&& illegal) {
    Graph graph;
    graph.CaptureBegin(*t.side);
    CHECK_THROWS_WITH_AS(illegal(), doctest::Contains("not permitted when stream is capturing"), Error);
    CHECK_THROWS_WITH_AS(graph.CaptureEnd(*t.side), doctest::Contains("not permitted"), Error);
    CHECK_FALSE(graph.captured());
  };
  Event event(*t.backend), before(*t.backend);
  before.Record(t.stream());
  spoil([&] { t.side->Synchronize(); });
  spoil([&] { t.side->Query(); });
  spoil([&] { t.device.Synchronize(); });
  spoil([&] {
    std::thread([&] { CHECK_THROWS_AS(t.device.Synchronize(), Error); }).join();
    t.side->Query();
  });
  spoil([&] {
    event.Record(*t.side);
    event.Synchronize();
  });
  spoil([&] { t.side->Wait(before); });
  t.side->Synchronize();
  t.device.Synchronize();
}

TEST_CASE("graph: capture modes say whose waits for the device are refused") {
  Setting t;
  Graph graph;
  graph.CaptureBegin(*t.side, {}, CaptureMode::kThreadLocal);
  std::thread([&] { CHECK_NOTHROW(t.stream().Synchronize()); }).join();
  std::thread([&] { CHECK_NOTHROW(t.device.allocator().EmptyCache()); }).join();
  graph.CaptureEnd(*t.side);
  CHECK(ParseCaptureMode("relaxed") == CaptureMode::kRelaxed);
  CHECK_THROWS_AS(ParseCaptureMode("strict"), Error);
}

TEST_CASE("graph: misuse of capture says what is wrong") {
  Setting t;
  Graph graph;
  CHECK_THROWS_WITH_AS(graph.CaptureBegin(t.stream()), doctest::Contains("non-default stream"), Error);
  CHECK_THROWS_WITH_AS(graph.CaptureEnd(*t.side), doctest::Contains("before capture_begin"), Error);
  CHECK_THROWS_WITH_AS(graph.Replay(*t.side), doctest::Contains("without a preceding successful capture"), Error);
  CHECK_THROWS_WITH_AS(graph.pool(), doctest::Contains("without a preceding successful capture"), Error);
  graph.CaptureBegin(*t.side);
  CHECK_THROWS_WITH_AS(graph.CaptureBegin(*t.side), doctest::Contains("already owns"), Error);
  Graph second;
  CHECK_THROWS_WITH_AS(second.CaptureBegin(*t.side), doctest::Contains("captured or updated already"), Error);
  auto other = t.device.CreateStream();
  CHECK_THROWS_WITH_AS(graph.CaptureEnd(*other), doctest::Contains("same stream"), Error);
  graph.CaptureEnd(*t.side);
  CHECK_THROWS_WITH_AS(graph.CaptureBegin(*t.side), doctest::Contains("already owns"), Error);
  graph.Reset();
  graph.Reset();
  graph.CaptureBegin(*t.side);
  graph.Reset();  // in the middle of a capture
  CHECK_FALSE(Graph::IsCapturing(*t.side));
}

TEST_CASE("graph: an error of a captured kernel surfaces at the synchronize after the replay") {
  Setting t;
  std::vector<int> log;
  Graph graph;
  graph.CaptureBegin(*t.side);
  t.side->Launch("npu_bad", Task([] { throw std::runtime_error("no luck"); }));
  t.side->Launch("after", Append(log, 1));
  graph.CaptureEnd(*t.side);
  for (int i = 0; i < 2; ++i) {
    graph.Replay(*t.side);
    CHECK_THROWS_WITH_AS(t.side->Synchronize(), "[graph] [npu_bad] no luck", Error);
  }
  CHECK(log.empty());
}

TEST_CASE("graph: a reset waits for the replay that is queued") {
  Setting t;
  Gate gate;
  OpenAtExit open{gate};
  std::atomic<bool> ran{false};
  auto graph = std::make_unique<Graph>();
  graph->CaptureBegin(*t.side);
  t.side->Launch("run", Task([&] { ran = true; }));
  graph->CaptureEnd(*t.side);
  t.side->Launch("gate", Task([&] { gate.Wait(); }));
  graph->Replay(*t.side);
  std::thread opener([&] { gate.Open(); });
  graph.reset();
  CHECK(ran);
  opener.join();
}

TEST_CASE("graph: what is kept for a capture lives as long as its graph") {
  Setting t;
  auto object = std::make_shared<int>(7);
  const std::weak_ptr<int> alive = object;
  CHECK_FALSE(Recording::Keep(*t.side, object));
  Graph graph;
  graph.CaptureBegin(*t.side);
  CHECK(Recording::Keep(*t.side, object));
  CHECK_FALSE(Recording::Keep(t.stream(), object));
  graph.CaptureEnd(*t.side);
  object.reset();
  CHECK_FALSE(alive.expired());
  graph.Reset();
  CHECK(alive.expired());
}

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

TEST_CASE("graph: captures on different streams and threads do not mix") {
  TestDevice t;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      auto stream = t.device.CreateStream();
      for (int round = 0; round < 20; ++round) {
        std::vector<int> log;
        Graph graph;
        graph.CaptureBegin(*stream, {}, CaptureMode::kThreadLocal);
        void* p = t.allocator().Allocate(1000, *stream);
        for (int i = 0; i < 5; ++i) stream->Launch("append", Append(log, k * 10 + i));
        t.allocator().Free(p);
        graph.CaptureEnd(*stream);
        graph.Replay(*stream);
        stream->Synchronize();
        wrong += log != std::vector<int>{k * 10, k * 10 + 1, k * 10 + 2, k * 10 + 3, k * 10 + 4};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace npu

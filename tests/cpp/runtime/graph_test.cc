#include "ep/runtime/graph.h"

#include <doctest/doctest.h>

#include <stdexcept>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph_recording.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using test::TestDevice;

constexpr size_t kMiB = size_t{1} << 20;

struct Setting : TestDevice {
  std::unique_ptr<Stream> side = device.CreateStream();
};

Task Append(std::vector<int>& log, int value) {
  return Task([&log, value] { log.push_back(value); });
}

}  // namespace

TEST_CASE("graph: captured launches run only at replays, in order, once per replay") {
  Setting t;
  std::vector<int> log;
  Graph graph;
  graph.CaptureBegin(*t.side);
  CHECK(Graph::IsCapturing(*t.side));
  CHECK_FALSE(Graph::IsCapturing(t.stream()));
  for (int i = 0; i < 3; ++i) t.side->Launch("append", Append(log, i));
  t.stream().Launch("outside", Append(log, 100));  // other streams run normally
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

TEST_CASE("graph: captured memory is private to its pool, and a replay allocates nothing") {
  Setting t;
  CachingAllocator& a = t.allocator();
  Graph graph;
  graph.CaptureBegin(*t.side);
  void* scratch = a.Allocate(3 * kMiB, *t.side);
  a.Free(scratch);
  void* again = a.Allocate(3 * kMiB, *t.side);
  CHECK(again == scratch);  // reused in stream order, as without a capture
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

TEST_CASE("graph: waiting for a capturing stream is refused and invalidates the capture") {
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
  spoil([&] { Graph::RefuseInCapture(*t.side, "a run of a session"); });
  CHECK_NOTHROW(Graph::RefuseInCapture(*t.side, "a run of a session"));
  t.side->Synchronize();
  t.device.Synchronize();
}

TEST_CASE("graph: capture modes determine which threads may not synchronise the device") {
  Setting t;
  Graph graph;
  graph.CaptureBegin(*t.side, {}, CaptureMode::kThreadLocal);
  std::thread([&] { CHECK_NOTHROW(t.stream().Synchronize()); }).join();
  std::thread([&] { CHECK_NOTHROW(t.device.allocator().EmptyCache()); }).join();
  graph.CaptureEnd(*t.side);
  CHECK(ParseCaptureMode("relaxed") == CaptureMode::kRelaxed);
  CHECK_THROWS_AS(ParseCaptureMode("strict"), Error);
}

TEST_CASE("graph: misuse of capture is reported") {
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
  graph.Reset();  // during a capture
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

TEST_CASE("graph: objects kept for a capture live as long as its graph") {
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

}  // namespace npu

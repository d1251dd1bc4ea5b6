#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/graph_recording.h"
#include "ep/runtime/retirement.h"
#include "tests/cpp/support/test_device.h"

namespace npu {
namespace {

using test::Append;
using test::Gate;
using test::OpenAtExit;
using test::TestDevice;
using Setting = test::DeviceWithSideStream;

}  // namespace

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

TEST_CASE("graph: a launch concurrent with capture ends is captured whole or runs") {
  Setting t;
  constexpr int64_t kLaunches = 20000;
  std::atomic<bool> done{false};
  int64_t ran = 0;
  std::thread other([&] {
    for (int64_t i = 0; i < kLaunches; ++i) t.side->Launch("x", Task([&] { ++ran; }));
    done = true;
  });
  size_t captured = 0;
  while (!done) {
    Graph graph;
    graph.CaptureBegin(*t.side);
    graph.CaptureEnd(*t.side);
    captured += graph.size();
  }
  other.join();
  t.side->Synchronize();
  CHECK(ran + static_cast<int64_t>(captured) == kLaunches);
}

TEST_CASE("graph: random draws and kept objects concurrent with capture ends") {
  Setting t;
  const auto source = std::make_shared<RandomSource>(PhiloxState{1, 0});
  std::atomic<bool> done{false};
  std::thread other([&] {
    for (int i = 0; i < 5000; ++i) {
      DrawPosition(source, *t.side, 1);
      DrawSeed(source, *t.side);
      Recording::Keep(*t.side, source);
    }
    done = true;
  });
  while (!done) {
    Graph graph;
    graph.CaptureBegin(*t.side);
    graph.CaptureEnd(*t.side);
  }
  other.join();
  CHECK(source.use_count() == 1);
}

TEST_CASE("graph: short-lived streams take part in captures of other threads") {
  Setting t;
  std::atomic<bool> done{false};
  Event shared(*t.backend);
  std::thread other([&] {
    for (int i = 0; i < 500; ++i) {
      auto passing = t.device.CreateStream();
      passing->Wait(shared);
      void* p = t.allocator().Allocate(1000, *passing);
      passing->Launch("x", Task([] {}));
      t.allocator().Free(p);
    }
    done = true;
  });
  while (!done) {
    Graph graph;
    graph.CaptureBegin(*t.side);
    shared.Record(*t.side);
    t.side->Launch("y", Task([] {}));
    try {
      graph.CaptureEnd(*t.side);
    } catch (const Error& e) {
      CHECK(std::string(e.what()).find("unjoined") != std::string::npos);
      continue;
    }
    graph.Replay(*t.side);
  }
  other.join();
  t.side->Synchronize();
}

TEST_CASE("graph: destroying a graph does not block, and a running replay keeps what it needs") {
  Setting t;
  Gate gate;
  OpenAtExit open{gate};
  bool ran = false;
  auto object = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = object;
  auto graph = std::make_unique<Graph>();
  graph->CaptureBegin(*t.side, {0, 3});
  Recording::Keep(*t.side, std::move(object));
  t.side->Launch("run", Task([&] { ran = true; }));
  graph->CaptureEnd(*t.side);
  t.side->Launch("gate", Task([&] { gate.Wait(); }));
  graph->Replay(*t.side);
  graph.reset();
  CHECK_FALSE(ran);
  CHECK_FALSE(alive.expired());
  CHECK(t.allocator().PoolUseCount({0, 3}) == 1);
  gate.Open();
  t.side->Synchronize();
  CHECK(ran);
  FinishRetirements(*t.backend);
  CHECK(alive.expired());
  CHECK(t.allocator().PoolUseCount({0, 3}) == 0);
}

TEST_CASE("graph: replays of one graph on many streams are serialised, and a reset may run concurrently") {
  TestDevice t;
  int64_t count = 0, inside = 0, most = 0;
  auto capturing = t.device.CreateStream();
  Graph graph;
  graph.CaptureBegin(*capturing);
  for (int i = 0; i < 4; ++i)
    capturing->Launch("count", Task([&] {
                        most = std::max(most, ++inside);
                        ++count;
                        --inside;
                      }));
  graph.CaptureEnd(*capturing);
  std::atomic<int64_t> replays{0};
  std::vector<std::thread> threads;
  for (int k = 0; k < 3; ++k)
    threads.emplace_back([&] {
      auto stream = t.device.CreateStream();
      for (int i = 0; i < 200; ++i) {
        try {
          graph.Replay(*stream);
        } catch (const Error&) {
          break;  // it was reset
        }
        ++replays;
      }
      stream->Synchronize();
    });
  while (replays < 100) std::this_thread::yield();
  graph.Reset();
  for (std::thread& thread : threads) thread.join();
  CHECK(count == 4 * replays);
  CHECK(most == 1);
}

}  // namespace npu

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <utility>

#include "ep/runtime/device.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/retirement.h"
#include "tests/cpp/support/watched_backend.h"

namespace npu {
namespace {

constexpr size_t kLimit = size_t{1} << 28;

// Fails one call, counted from a point that the test chooses.
class FailingBackend : public test::WatchedBackend {
 public:
  FailingBackend() : WatchedBackend(kLimit) {}

  static constexpr int kNever = -1;
  std::atomic<int> calls_until_failure{kNever};

  void* AllocDevice(int device, size_t bytes) override {
    return Fails() ? nullptr : WatchedBackend::AllocDevice(device, bytes);
  }
  BackendStream* CreateStream(int device, int priority) override {
    MayFail();
    return WatchedBackend::CreateStream(device, priority);
  }
  void Launch(BackendStream* s, const char* op, Task task, size_t bytes) override {
    MayFail();
    WatchedBackend::Launch(s, op, std::move(task), bytes);
  }
  void LaunchHost(BackendStream* s, const char* op, Task task) override {
    MayFail();
    WatchedBackend::LaunchHost(s, op, std::move(task));
  }
  void LaunchAlways(BackendStream* s, const char* op, std::function<void(const Status&)> task) override {
    MayFail();
    WatchedBackend::LaunchAlways(s, op, std::move(task));
  }
  BackendEvent* CreateEvent(bool timing) override {
    MayFail();
    return WatchedBackend::CreateEvent(timing);
  }
  void EventRecord(BackendEvent* e, BackendStream* s) override {
    MayFail();
    WatchedBackend::EventRecord(e, s);
  }

 private:
  bool Fails() { return calls_until_failure >= 0 && calls_until_failure-- == 0; }
  void MayFail() {
    if (Fails()) throw std::runtime_error("injected");
  }
};

// Captures two branches that use memory of the pool, updates one of them, and replays; returns the sum of both replays.
int Run(Device& device, Stream& origin, Stream& other, Graph& graph) {
  std::atomic<int> sum{0};
  Event fork(device.backend()), join(device.backend());
  graph.CaptureBegin(origin, {0, 9});
  const auto use_memory = [&](Stream& stream) {
    device.allocator().Free(device.allocator().Allocate(4 << 20, stream));
  };
  use_memory(origin);
  fork.Record(origin);
  other.Wait(fork);
  other.LaunchAlways("there", [&](const Status&) { sum += 1; });
  Graph::BeginGroup(origin);
  origin.Launch("here", Task([&] { sum += 10; }));
  const GraphTaskGroup group = Graph::EndGroup(origin);
  join.Record(other);
  origin.Wait(join);
  graph.CaptureEnd(origin);
  const auto replay = [&] {
    try {
      graph.Replay(origin);
      origin.Synchronize();
    } catch (...) {
      device.backend().StreamSynchronize(origin.handle());  // pending launches use `sum`
      throw;
    }
  };
  replay();
  Graph::BeginUpdate(other, group);
  use_memory(other);
  other.Launch("here", Task([&] { sum += 100; }));
  Graph::EndUpdate(other);
  replay();
  return sum;
}

}  // namespace

TEST_CASE("graph: after any backend call fails, graph and streams are usable and nothing leaks") {
  FailingBackend backend;
  Device device(backend, 0, kLimit);
  auto origin = device.CreateStream(), other = device.CreateStream();
  int failures = 0;
  for (int n = 0;; ++n) {
    bool failed = false;
    Graph graph;
    backend.calls_until_failure = n;
    try {
      const int sum = Run(device, *origin, *other, graph);
      CHECK(sum == 112);
    } catch (const std::exception&) {
      failed = true;
      ++failures;
    }
    const bool reached = backend.calls_until_failure.exchange(FailingBackend::kNever) < 0;
    if (failed) {
      try {
        Graph::EndUpdate(*other);  // if the update is still open
      } catch (const Error&) {
      }
      graph.Reset();
      CHECK_FALSE(Graph::IsCapturing(*origin));
      CHECK_FALSE(Graph::IsCapturing(*other));
      CHECK(Run(device, *origin, *other, graph) == 112);
    }
    graph.Reset();
    FinishRetirements(backend);
    CHECK(device.allocator().PoolUseCount({0, 9}) == 0);
    CHECK(device.allocator().Stats().allocation.all.current == 0);
    device.allocator().EmptyCache();
    CHECK(device.allocator().Stats().reserved_bytes.all.current == 0);
    if (!reached) break;
  }
  CHECK(failures > 5);
}

}  // namespace npu

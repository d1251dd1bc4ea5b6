// Every backend call fails once in turn, in scenarios that cover the runtime: each time there is an error, the same
// scenario then succeeds, and nothing leaks.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/eager_context.h"
#include "ep/runtime/external_event.h"
#include "ep/runtime/fault_injection.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/host/host_backend.h"
#include "ep/runtime/outstanding.h"
#include "ep/runtime/pinned_memory.h"
#include "ep/runtime/retirement.h"
#include "ep/runtime/run_to_end.h"

namespace npu {
namespace {

constexpr size_t kLimit = size_t{1} << 30;

struct FaultyDevice {
  explicit FaultyDevice(const AllocatorSettings& settings = {})
      : device(std::make_unique<Device>(faults, 0, kLimit, settings)) {}

  FaultInjection faults{MakeHostBackend({1, kLimit, "test device"})};
  std::unique_ptr<Device> device;
};

// One pass through a scenario, and whether a failure in it may have stayed unreported.
class Trial {
 public:
  explicit Trial(FaultyDevice& t) : faults(t.faults), device(*t.device) {}

  // For calls that may tolerate a failure.
  template <class F>
  void Lenient(F&& f) {
    const int64_t before = faults.failed();
    f();
    unnoticed |= faults.failed() != before;
  }
  // For calls that cannot report a failure: destructors and frees.
  template <class F>
  void Quiet(F&& f) {
    Lenient([&] { CHECK_NOTHROW(f()); });
  }
  template <class T>
  auto Own(std::unique_ptr<T> object) {
    const auto destroy = [this](T* p) { Quiet([=] { delete p; }); };
    return std::unique_ptr<T, decltype(destroy)>(object.release(), destroy);
  }
  auto Stream(StreamOwner owner = StreamOwner::kThreads) { return Own(device.CreateStream(0, owner)); }
  auto Event() { return Own(std::make_unique<npu::Event>(device.backend())); }
  auto Memory(size_t bytes, npu::Stream& stream) {
    const auto free = [this](int* p) { Quiet([=, this] { device.allocator().Free(p); }); };
    return std::unique_ptr<int, decltype(free)>(static_cast<int*>(device.allocator().Allocate(bytes, stream)), free);
  }

  FaultInjection& faults;
  Device& device;
  bool unnoticed = false;
};
using Scenario = std::function<void(Trial&)>;

void CheckNothingIsLeft(FaultyDevice& t) {
  CHECK_NOTHROW(FinishRetirements(t.faults));
  CHECK_NOTHROW(t.device->allocator().EmptyCache());
  const AllocatorStats stats = t.device->allocator().Stats();
  CHECK(stats.allocated_bytes.all.current == 0);
  CHECK(stats.reserved_bytes.all.current == 0);
  t.device.reset();
  for (const auto& [kind, count] : t.faults.held()) CHECK_MESSAGE(count == 0, kind);
}

// An allocation is retried after memory was freed, so it fails only after several consecutive failures.
int64_t TimesToFail(const std::string& call) {
  return call == "AllocDevice" || call == "AllocPinned" || call == "MapDevice" || call == "ReserveAddresses" ? 4 : 1;
}

void FailInTurn(const std::string& call, int64_t nth, const AllocatorSettings& settings, const Scenario& scenario) {
  CAPTURE(call);
  CAPTURE(nth);
  FaultyDevice t(settings);
  Trial trial(t);
  bool told = false;
  t.faults.Arm(call, nth, TimesToFail(call));
  try {
    scenario(trial);
    t.device->Synchronize();
  } catch (const Error& e) {
    told = true;
    const bool of_memory = e.code() == ErrorCode::kOutOfMemory;
    CHECK_MESSAGE((of_memory || std::string(e.what()).find("injected failure of " + call) != std::string::npos),
                  e.what());
  }
  trial.Quiet([&] { FinishRetirements(t.faults); });
  if (t.faults.Disarm() > 0) CHECK((told || trial.unnoticed));
  try {
    t.device->Synchronize();  // reports work that failed after the reported call
  } catch (const Error&) {
    CHECK(told);
  }
  Trial again(t);
  CHECK_NOTHROW(scenario(again));
  CHECK_NOTHROW(t.device->Synchronize());
  CheckNothingIsLeft(t);
}

void FailEachCall(const Scenario& scenario, const AllocatorSettings& settings = {}) {
  std::map<std::string, int64_t> calls;
  {
    FaultyDevice t(settings);
    const auto before = t.faults.calls();
    Trial trial(t);
    scenario(trial);
    t.device->Synchronize();
    calls = t.faults.calls();
    for (const auto& [call, count] : before) calls[call] -= count;
    CheckNothingIsLeft(t);
  }
  int64_t total = 0;
  for (const auto& [call, count] : calls) {
    for (int64_t nth = 1; nth <= count; ++nth, ++total) FailInTurn(call, nth, settings, scenario);
  }
  CHECK(total > 0);
}

void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

void UseMemoryOfTwoStreams(Trial& t) {
  const auto first = t.Stream(), second = t.Stream();
  for (int round = 0; round < 2; ++round) {
    auto block = t.Memory(1 << 20, *first);
    auto large = t.Memory(24 << 20, *second);
    t.device.allocator().RecordStream(block.get(), *second);
    t.device.allocator().RecordStream(large.get(), *first);
    first->Launch("op", [p = block.get()] { Pause(), *p = 1; });
    second->Launch("op", [p = large.get()] { Pause(), *p = 2; });
    block.reset();
    large.reset();
    const auto next = t.Memory(1 << 20, *first);
    first->Launch("op", [p = next.get()] { *p = 3; });
  }
  t.Lenient([&] { t.device.allocator().EmptyCache(); });
  t.Lenient([&] { t.device.allocator().ShareFreeBlocks(*first); });
  const auto after = t.Memory(1 << 20, t.device.default_stream());
}

}  // namespace

TEST_CASE("faults: a device whose streams cannot be created is an error, and the next one works") {
  FaultInjection faults(MakeHostBackend({1, kLimit, "test device"}));
  faults.Arm("CreateStream", 1);
  CHECK_THROWS_WITH(Device(faults, 0, kLimit), "[fault] injected failure of CreateStream");
  {
    Device device(faults, 0, kLimit);
  }
  for (const auto& [kind, count] : faults.held()) CHECK_MESSAGE(count == 0, kind);
}

TEST_CASE("faults: arming a fault reports what it requires") {
  const auto plain = MakeHostBackend({1, kLimit, "test device"});
  CHECK_THROWS_AS(FaultInjection::Of(*plain), Error);
  FaultInjection faults(MakeHostBackend({1, kLimit, "test device"}));
  CHECK_THROWS_AS(FaultInjection::Of(faults).Arm("Launch", 0), Error);
}

TEST_CASE("faults: streams and events are created, used and destroyed") {
  FailEachCall([](Trial& t) {
    const auto first = t.Stream(), second = t.Stream(StreamOwner::kOne);
    const auto event = t.Event();
    const auto value = std::make_shared<std::atomic<int>>(0);
    first->Launch("op", [=] { Pause(), *value = 1; });
    event->Record(*first);
    second->Wait(*event);
    second->Launch("op", [=] { *value = *value * 2; });
    second->HostCallback([=] { ++*value; });
    event->Synchronize();
    second->Synchronize();
    CHECK(value->load() == 3);
    const bool passed = event->Query() && first->Query();
    CHECK(passed);
  });
}

TEST_CASE("faults: copies and fills") {
  FailEachCall([](Trial& t) {
    npu::Stream& stream = t.device.default_stream();
    constexpr size_t kBytes = 64 << 10;
    const auto block = t.Memory(kBytes, stream), other = t.Memory(kBytes, stream);
    const std::vector<char> from(kBytes, 7);
    std::vector<char> to(kBytes), filled(kBytes, 1);
    RunToEnd(stream, [&] {
      stream.Copy(block.get(), from.data(), kBytes, CopyKind::kHostToDevice);
      stream.Copy(other.get(), block.get(), kBytes, CopyKind::kDeviceToDevice);
      stream.Memset(block.get(), 0, kBytes);
      stream.Copy(to.data(), other.get(), kBytes, CopyKind::kDeviceToHost);
      stream.Copy(filled.data(), block.get(), kBytes, CopyKind::kDeviceToHost);
    });
    CHECK(to == from);
    CHECK(filled == std::vector<char>(kBytes));
    t.device.backend().CopyNow(0, to.data(), block.get(), kBytes, CopyKind::kDeviceToHost);
    CHECK(to == filled);
  });
}

TEST_CASE("faults: memory that several streams use") { FailEachCall(UseMemoryOfTwoStreams); }

TEST_CASE("faults: memory of expandable segments") {
  AllocatorSettings settings;
  settings.expandable_segments = true;
  FailEachCall(UseMemoryOfTwoStreams, settings);
}

TEST_CASE("faults: memory without a cache") {
  AllocatorSettings settings;
  settings.caching = false;
  FailEachCall(UseMemoryOfTwoStreams, settings);
}

TEST_CASE("faults: events that order several streams, and a wait for the device") {
  FailEachCall([](Trial& t) {
    std::vector<int> order;
    const auto first = t.Stream(), second = t.Stream(), third = t.Stream();
    const auto one = t.Event(), two = t.Event();
    try {
      first->Launch("op", [&] { Pause(), order.push_back(1); });
      one->Record(*first);
      second->Wait(*one);
      second->Launch("op", [&] { order.push_back(2); });
      two->Record(*second);
      third->Wait(*two);
      third->Launch("op", [&] { order.push_back(3); });
      t.device.Synchronize();
      CHECK(order == std::vector<int>{1, 2, 3});
    } catch (const Error&) {
      for (const auto* stream : {&first, &second, &third}) t.faults.StreamSynchronize((*stream)->handle());
      throw;
    }
  });
}

TEST_CASE("faults: external events") {
  FailEachCall([](Trial& t) {
    auto value = std::make_shared<int>(0);
    const auto first = t.Stream(), second = t.Stream();
    ExternalEvent event;
    first->Launch("op", [=] { *value = 1; });
    event.Record(*first);
    event.Wait(*second);
    second->Launch("op", [=] { *value *= 5; });
    second->Synchronize();
    CHECK(*value == 5);
    event.Record(*first);
    event.Reset(*first);
    first->Synchronize();
  });
}

TEST_CASE("faults: graphs are captured, replayed, updated and destroyed") {
  FailEachCall([](Trial& t) {
    const auto side = t.Stream(), branch = t.Stream();
    const auto counter = std::make_shared<std::atomic<int>>(0);
    auto graph = t.Own(std::make_unique<Graph>());
    GraphTaskGroup group;
    graph->CaptureBegin(*side);
    {
      const auto fork = t.Event(), join = t.Event();
      const auto scratch = t.Memory(1 << 20, *side);
      side->Launch("fill", [p = scratch.get()] { *p = 10; });
      fork->Record(*side);
      branch->Wait(*fork);
      branch->Launch("add", [=, p = scratch.get()] { *counter += *p; });
      join->Record(*branch);
      side->Wait(*join);
      Graph::BeginGroup(*side);
      side->Launch("last", [=] { *counter += 1; });
      group = Graph::EndGroup(*side);
      side->Memset(scratch.get(), 0, 64);
      side->Copy(scratch.get() + 16, scratch.get(), 64, CopyKind::kDeviceToDevice);
    }
    graph->CaptureEnd(*side);
    graph->Replay(*side);
    graph->Replay(t.device.default_stream());
    t.device.default_stream().Synchronize();
    side->Synchronize();
    CHECK(counter->load() == 22);
    Graph::BeginUpdate(*branch, group);
    branch->Launch("last", [=] { *counter += 100; });
    Graph::EndUpdate(*branch);
    graph->Replay(*side);
    side->Synchronize();
    CHECK(counter->load() == 132);
    graph->Replay(*side);
    t.Quiet([&] { graph.reset(); });  // its replay may be in flight
    side->Synchronize();
    CHECK(counter->load() == 242);
  });
}

TEST_CASE("faults: work that a thread left on another owner's streams") {
  FailEachCall([](Trial& t) {
    const auto value = std::make_shared<std::atomic<int>>(0);
    const auto run = t.Stream(StreamOwner::kOne);
    run->Launch("op", [=] { Pause(), *value = 1; });
    auto done = std::make_shared<npu::Event>(t.device.backend());
    done->Record(*run);
    Outstanding::Add(t.device, std::move(done));
    const auto caller = t.Stream();
    caller->Launch("op", [=] { *value = *value + 1; });
    caller->Synchronize();
    CHECK(value->load() == 2);
  });
}

TEST_CASE("faults: streams and memory destroyed while work is in flight") {
  FailEachCall([](Trial& t) {
    const auto ran = std::make_shared<std::atomic<int>>(0);
    auto stream = t.Stream(), user = t.Stream();
    auto block = t.Memory(4 << 20, *stream);
    t.device.allocator().RecordStream(block.get(), *user);
    stream->Launch("op", [=, p = block.get()] { Pause(), p[0] = 1, ++*ran; });
    user->Launch("op", [=, p = block.get()] { Pause(), p[1] = 2, ++*ran; });
    t.Quiet([&] {
      stream.reset();
      block.reset();
      user.reset();
      FinishRetirements(t.faults);
    });
    CHECK(ran->load() == 2);
    const auto next = t.Memory(4 << 20, t.device.default_stream());
    t.Lenient([&] { t.device.allocator().EmptyCache(); });
  });
}

TEST_CASE("faults: objects kept for work in flight are released afterwards even without events") {
  FailEachCall([](Trial& t) {
    const auto first = t.Stream(), second = t.Stream();
    const auto over = std::make_shared<std::atomic<int>>(0);
    first->Launch("op", [=] { Pause(), ++*over; });
    second->Launch("op", [=] { Pause(), ++*over; });
    std::atomic<int> seen{-1};
    t.Quiet([&] {
      RetireAfter(t.faults, {first->handle(), second->handle()}, [&] { seen = over->load(); });
      FinishRetirements(t.faults);
    });
    CHECK(seen == 2);
  });
}

TEST_CASE("faults: a call's scratch memory") {
  FailEachCall([](Trial& t) {
    npu::Stream& stream = t.device.default_stream();
    const auto output = t.Memory(4, stream);
    EagerContext context(stream, {}, 1, [&](size_t, DType, const Shape&) { return output.get(); });
    auto* scratch = static_cast<int*>(context.Workspace(1 << 20));
    auto* more = static_cast<int*>(context.Workspace(24 << 20));
    auto* to = static_cast<int*>(context.Output(0, DType::kInt32, Shape{1}).data);
    stream.Launch("op", [=] { *scratch = 3; });
    stream.Launch("op", [=] { *more = *scratch + 1; });
    int result = 0;
    stream.Launch("op", [=, &result] { result = *to = *more; });
    stream.Synchronize();
    CHECK(result == 4);
  });
}

TEST_CASE("faults: a kernel owned only by its launches") {
  struct Slow final : Kernel {
    explicit Slow(std::shared_ptr<std::atomic<int>> work) : in_flight(std::move(work)) {}
    ~Slow() override { CHECK(in_flight->load() == 0); }
    void Compute(OpContext& context) const override {
      for (int i = 0; i < 2; ++i) {
        auto token = std::shared_ptr<void>(nullptr, [work = in_flight](void*) { --*work; });
        ++*in_flight;
        context.stream().Launch("slow", [token] { Pause(); });
      }
    }
    std::shared_ptr<std::atomic<int>> in_flight;
  };
  FailEachCall([](Trial& t) {
    const auto in_flight = std::make_shared<std::atomic<int>>(0);
    npu::Stream& stream = t.device.default_stream();
    EagerContext(stream, {}, 0, nullptr).RunKept(std::make_shared<Slow>(in_flight), "slow");
    stream.Synchronize();
    CHECK(in_flight->load() == 0);
  });
}

TEST_CASE("faults: pinned memory used by copies") {
  FailEachCall([](Trial& t) {
    npu::Stream& stream = t.device.default_stream();
    auto pinned = t.Own(std::make_unique<PinnedMemory>(&t.device.backend()));
    const auto allocate = [&] {
      const auto free = [&](char* p) { t.Quiet([=, &pinned] { pinned->Free(p); }); };
      return std::unique_ptr<char, decltype(free)>(static_cast<char*>(pinned->Allocate(64 << 10)), free);
    };
    const auto block = t.Memory(64 << 10, stream);
    for (int round = 0; round < 2; ++round) {
      auto from = allocate(), to = allocate();
      *from = 5, *to = 0;
      RunToEnd(stream, [&] {
        stream.Launch("op", [] { Pause(); });
        stream.Copy(block.get(), from.get(), 64 << 10, CopyKind::kHostToDevice);
        t.Quiet([&] { pinned->RecordUse(from.get(), stream); });
        from.reset();
        stream.Copy(to.get(), block.get(), 64 << 10, CopyKind::kDeviceToHost);
        t.Quiet([&] { pinned->RecordUse(to.get(), stream); });
      });
      CHECK(*to == 5);
    }
    t.Quiet([&] { pinned.reset(); });
  });
}

TEST_CASE("faults: a device that is stopped and started again") {
  FailEachCall([](Trial& t) {
    const auto stream = t.Stream();
    stream->Launch("op", [] { Pause(); });
    t.device.Stop();
    CHECK_THROWS_AS(stream->Launch("op", [] {}), Error);
    try {
      t.Lenient([&] { t.device.Restart(); });  // it waits for work that failed because the device was stopped
    } catch (const Error&) {
      CHECK(t.device.stopped());
      t.device.Restart();
      throw;
    }
    bool ran = false;
    RunToEnd(*stream, [&] { stream->Launch("op", [&] { ran = true; }); });
    CHECK(ran);
  });
}

}  // namespace npu

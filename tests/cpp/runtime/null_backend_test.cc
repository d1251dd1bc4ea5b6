// ORT_NPU_BACKEND=null: everything except the work itself behaves as on the host backend.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/error.h"
#include "ep/runtime/graph.h"
#include "tests/cpp/support/child_process.h"

namespace npu {
namespace {

void Expect(const char* child) {
  const auto result = test::RunTestCase(child, {{"ORT_NPU_BACKEND", "null"}, {"ORT_NPU_MEMORY_LIMIT", "256M"}});
  CAPTURE(result.output);
  CHECK(result.exit_code == 0);
  CHECK(result.output.find("1 passed") != std::string::npos);
}

Device& NullDevice() {
  Runtime& runtime = Runtime::Instance();
  REQUIRE(std::string(runtime.backend().name()) == "null");
  return runtime.device(0);
}

}  // namespace

TEST_CASE("child null: memory" * doctest::skip()) {
  Device& device = NullDevice();
  CachingAllocator& allocator = device.allocator();
  CHECK(device.properties().name == "Null NPU");
  void* first = allocator.Allocate(1000, device.default_stream());
  CHECK(allocator.SizeOf(first) >= 1000);
  allocator.Free(first);
  CHECK(allocator.Allocate(1000, device.default_stream()) == first);
  CHECK_THROWS_AS(allocator.Allocate(size_t{300} << 20, device.default_stream()), Error);
  void* large = allocator.Allocate(size_t{100} << 20, device.default_stream());
  allocator.Free(large);
  allocator.EmptyCache();
  CHECK(allocator.Allocate(size_t{200} << 20, device.default_stream()) != nullptr);
}
TEST_CASE("null: blocks are cached, split and limited as on the host backend") { Expect("child null: memory"); }

TEST_CASE("child null: work" * doctest::skip()) {
  Device& device = NullDevice();
  Stream& stream = device.default_stream();
  auto* block = static_cast<float*>(device.allocator().Allocate(4096, stream));
  std::vector<float> host(1024, 7.0F);
  const auto kept = std::make_shared<int>(0);
  bool ran = false;
  stream.Copy(block, host.data(), 4096, CopyKind::kHostToDevice);
  stream.Memset(block, 1, 4096);
  stream.Launch("kernel", [block, kept, &ran] {
    *block += 1;
    ran = true;
  });
  stream.Launch("failing kernel", [] { throw std::runtime_error("runs nowhere"); });
  bool called = false;
  stream.HostCallback([&called] { called = true; });
  stream.Copy(host.data(), block, 4096, CopyKind::kDeviceToHost);
  stream.Synchronize();
  CHECK_FALSE(ran);
  CHECK(called);
  CHECK(kept.use_count() == 1);
  CHECK(host == std::vector<float>(1024, 0.0F));
}
TEST_CASE("null: launches and copies complete in order and do nothing") { Expect("child null: work"); }

TEST_CASE("child null: order" * doctest::skip()) {
  Device& device = NullDevice();
  const auto first = device.CreateStream(), second = device.CreateStream();
  std::vector<int> log;  // callbacks of both streams, ordered by the events
  Event between(device.backend()), done(device.backend());
  for (int round = 0; round < 50; ++round) {
    first->Launch("kernel", [] {});
    first->LaunchAlways("callback", [&log](const Status& status) { log.push_back(status == nullptr ? 1 : -1); });
    between.Record(*first);
    second->Wait(between);
    second->LaunchAlways("callback", [&log](const Status&) { log.push_back(2); });
    done.Record(*second);
    first->Wait(done);
  }
  device.Synchronize();
  CHECK(done.Query());
  REQUIRE(log.size() == 100);
  for (size_t i = 0; i < log.size(); ++i) CHECK(log[i] == static_cast<int>(i % 2) + 1);
}
TEST_CASE("null: events order streams, and callbacks run") { Expect("child null: order"); }

TEST_CASE("child null: graph" * doctest::skip()) {
  Device& device = NullDevice();
  const auto stream = device.CreateStream();
  Graph graph;
  int runs = 0;
  graph.CaptureBegin(*stream);
  void* block = device.allocator().Allocate(4096, *stream);
  stream->Memset(block, 1, 4096);
  stream->Launch("kernel", [&runs] { ++runs; });
  graph.CaptureEnd(*stream);
  CHECK(graph.size() == 2);
  for (int i = 0; i < 3; ++i) graph.Replay(*stream);
  stream->Synchronize();
  CHECK(runs == 0);
}
TEST_CASE("null: graphs are captured and replayed") { Expect("child null: graph"); }

TEST_CASE("child null: callbacks of a graph" * doctest::skip()) {
  Device& device = NullDevice();
  const auto stream = device.CreateStream(), side = device.CreateStream();
  Graph graph;
  std::vector<int> log;
  std::vector<char> host(4096, 7);
  Event fork(device.backend()), join(device.backend());
  graph.CaptureBegin(*stream);
  auto* block = static_cast<char*>(device.allocator().Allocate(host.size(), *stream));
  stream->HostCallback([&log] { log.push_back(1); });
  stream->Launch("kernel", [block] { *block = 1; });
  fork.Record(*stream);
  side->Wait(fork);
  side->LaunchAlways("signal", [&log](const Status& status) { log.push_back(status == nullptr ? 2 : -1); });
  join.Record(*side);
  stream->Wait(join);
  stream->Copy(host.data(), block, host.size(), CopyKind::kDeviceToHost);
  stream->HostCallback([&] { log.push_back(host[0] == 0 ? 3 : -1); });
  graph.CaptureEnd(*stream);
  CHECK(log.empty());
  for (int i = 0; i < 3; ++i) {
    host.assign(host.size(), 7);
    graph.Replay(*stream);
    stream->Synchronize();
  }
  CHECK(log == std::vector<int>{1, 2, 3, 1, 2, 3, 1, 2, 3});
}
TEST_CASE("null: callbacks that a graph captured run in their order at each replay") {
  Expect("child null: callbacks of a graph");
}

TEST_CASE("child null: a failing callback of a graph" * doctest::skip()) {
  Device& device = NullDevice();
  const auto stream = device.CreateStream();
  Graph graph;
  bool behind = false;
  graph.CaptureBegin(*stream);
  stream->HostCallback([] { throw std::runtime_error("no"); });
  stream->HostCallback([&behind] { behind = true; });
  graph.CaptureEnd(*stream);
  graph.Replay(*stream);
  CHECK_THROWS_WITH_AS(stream->Synchronize(), "[graph] [host_callback] no", Error);
  CHECK_FALSE(behind);
}
TEST_CASE("null: a callback that fails at a replay fails the replay") {
  Expect("child null: a failing callback of a graph");
}

TEST_CASE("child null: stop" * doctest::skip()) {
  Device& device = NullDevice();
  device.Stop();
  CHECK_THROWS_AS(device.default_stream().Launch("kernel", [] {}), Error);
  device.Restart();
  device.default_stream().Launch("kernel", [] {});
  device.default_stream().Synchronize();
}
TEST_CASE("null: a device stops and restarts") { Expect("child null: stop"); }

}  // namespace npu

// Device memory that only the device may access: the null backend's, and the host backend's with
// ORT_NPU_GUARD_MEMORY=1.
#include <doctest/doctest.h>
#include <signal.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "ep/runtime/device.h"
#include "ep/runtime/graph.h"
#include "ep/runtime/thread_pool.h"
#include "tests/cpp/support/child_process.h"

namespace npu {
namespace {

const std::map<std::string, std::string> kGuarded{{"ORT_NPU_GUARD_MEMORY", "1"}}, kNull{{"ORT_NPU_BACKEND", "null"}};

std::map<std::string, std::string> Expandable(std::map<std::string, std::string> environment) {
  environment["PYTORCH_NPU_ALLOC_CONF"] = "expandable_segments:True";
  return environment;
}

constexpr size_t kBytes = size_t{4} << 20;

}  // namespace

TEST_CASE("child: host code reads device memory" * doctest::skip()) {
  signal(SIGSEGV, SIG_DFL);  // instead of the test framework's
  Device& device = Runtime::Instance().device(0);
  auto* block = static_cast<volatile char*>(device.allocator().Allocate(kBytes, device.default_stream()));
  device.default_stream().Memset(const_cast<char*>(block), 1, kBytes);
  device.Synchronize();
  std::printf("touching 0x%jx\n", static_cast<uintmax_t>(reinterpret_cast<uintptr_t>(block + 100)));
  std::fflush(stdout);
  std::printf("read %d\n", block[100]);
}

TEST_CASE("a host access to device memory crashes and is reported") {
  for (const auto& environment : {kGuarded, kNull, Expandable(kGuarded), Expandable(kNull)}) {
    const auto child = test::RunTestCase("child: host code reads device memory", environment);
    CAPTURE(child.output);
    CHECK(child.exit_code == -1);
    const size_t touching = child.output.find("touching ");
    REQUIRE(touching != std::string::npos);
    const std::string address = child.output.substr(touching + 9, child.output.find('\n', touching) - touching - 9);
    CHECK(child.output.find("[device memory] host code touched device address " + address + " of an allocation of ") !=
          std::string::npos);
    CHECK(child.output.find("read ") == std::string::npos);
  }
  const auto plain = test::RunTestCase("child: host code reads device memory", {{"ORT_NPU_GUARD_MEMORY", "0"}});
  CAPTURE(plain.output);
  CHECK(plain.exit_code == 0);
}

TEST_CASE("child: a callback reads device memory" * doctest::skip()) {
  signal(SIGSEGV, SIG_DFL);
  Device& device = Runtime::Instance().device(0);
  const auto stream = device.CreateStream();
  auto* block = static_cast<volatile char*>(device.allocator().Allocate(kBytes, *stream));
  stream->HostCallback([block] { std::printf("read %d\n", block[0]); });
  device.Synchronize();
}

TEST_CASE("child: a callback of a graph reads device memory" * doctest::skip()) {
  signal(SIGSEGV, SIG_DFL);
  Device& device = Runtime::Instance().device(0);
  const auto stream = device.CreateStream();
  auto* block = static_cast<volatile char*>(device.allocator().Allocate(kBytes, *stream));
  Graph graph;
  graph.CaptureBegin(*stream);
  stream->Launch("write", [block] { block[0] = 1; });
  stream->HostCallback([] { std::printf("replaying\n"), std::fflush(stdout); });
  stream->HostCallback([block] { std::printf("read %d\n", block[0]); });
  graph.CaptureEnd(*stream);
  graph.Replay(*stream);
  device.Synchronize();
}

TEST_CASE("a callback is host code: device memory is closed to it, in a replay too") {
  for (const char* name : {"child: a callback reads device memory", "child: a callback of a graph reads device memory"})
    for (const auto& environment : {kGuarded, kNull}) {
      const auto child = test::RunTestCase(name, environment);
      CAPTURE(child.output);
      CHECK(child.exit_code == -1);
      CHECK(child.output.find("[device memory] host code touched device address ") != std::string::npos);
      CHECK(child.output.find("read ") == std::string::npos);
      if (std::string(name).find("graph") != std::string::npos)
        CHECK(child.output.find("replaying") != std::string::npos);
    }
}

TEST_CASE("child: host code touches an unmapped address" * doctest::skip()) {
  signal(SIGSEGV, SIG_DFL);
  Runtime::Instance();
  *reinterpret_cast<volatile char*>(uintptr_t{4096}) = 1;
}

TEST_CASE("other faults are not reported as device memory accesses") {
  for (const auto& environment : {kGuarded, kNull}) {
    const auto child = test::RunTestCase("child: host code touches an unmapped address", environment);
    CAPTURE(child.output);
    CHECK(child.exit_code == -1);
    CHECK(child.output.find("[device memory]") == std::string::npos);
  }
}

TEST_CASE("child: ordinary work in guarded memory" * doctest::skip()) {
  Device& device = Runtime::Instance().device(0);
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(device.CreateStream());
  constexpr int64_t kCount = kBytes / sizeof(float);
  std::vector<float> from(kCount), to(kCount);
  std::iota(from.begin(), from.end(), 0.0F);
  for (int round = 0; round < 20; ++round) {
    for (const auto& stream : streams) {
      auto* block = static_cast<float*>(device.allocator().Allocate(kBytes, *stream));
      stream->Copy(block, from.data(), kBytes, CopyKind::kHostToDevice);
      stream->Launch("add", [block] {
        ParallelFor(kCount, 1024, [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) block[i] += 1;
        });
      });
      stream->Copy(to.data(), block, kBytes, CopyKind::kDeviceToHost);
      stream->Synchronize();
      REQUIRE(to[kCount - 1] == static_cast<float>(kCount));
      device.backend().CopyNow(0, to.data(), block, kBytes, CopyKind::kDeviceToHost);
      REQUIRE(to[0] == 1.0F);
      device.allocator().Free(block);
    }
    if (round % 5 == 0) device.allocator().EmptyCache();
  }
}

TEST_CASE("ordinary work passes with guarded memory") {
  for (const auto& environment : {kGuarded, Expandable(kGuarded)}) {
    const auto child = test::RunTestCase("child: ordinary work in guarded memory", environment);
    CAPTURE(child.output);
    CHECK(child.exit_code == 0);
    CHECK(child.output.find("1 passed") != std::string::npos);
  }
}

}  // namespace npu

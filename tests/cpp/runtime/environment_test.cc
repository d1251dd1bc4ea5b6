#include "ep/runtime/environment.h"

#include <doctest/doctest.h>

#include <string>

#include "ep/runtime/device.h"
#include "tests/cpp/support/child_process.h"

namespace npu {
namespace {

std::string MessageOf(void (*f)()) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kInvalidArgument);
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("byte counts take suffixes") {
  CHECK(ParseBytes("V", "1") == 1);
  CHECK(ParseBytes("V", "3K") == 3072);
  CHECK(ParseBytes("V", "5m") == size_t{5} << 20);
  CHECK(ParseBytes("V", "4G") == size_t{4} << 30);
  CHECK(ParseBytes("V", "131072G") == size_t{1} << 47);
}

TEST_CASE("absurd byte counts are refused with a one-line error") {
  for (const char* value : {"banana", "-1", "0", "0G", "", "G", "1.5G", "1 G", " 1G", "+1", "0x10", "4GB", "1T",
                            "131073G", "99999999999999999999", "18446744073709551615", "17179869184G"}) {
    CAPTURE(value);
    CHECK_THROWS_AS(ParseBytes("V", value), Error);
  }
  CHECK(MessageOf([] { ParseBytes("ORT_NPU_MEMORY_LIMIT", "banana"); }) ==
        "environment variable ORT_NPU_MEMORY_LIMIT: expected a positive number of bytes, optionally with a suffix K, M "
        "or G (such as 4G), at most 128 TiB, got 'banana'");
}

TEST_CASE("counts, switches and levels are parsed") {
  CHECK(ParseCount("V", "64", 64) == 64);
  for (const char* value : {"0", "65", "-1", "two", "1.0", "99999999999", ""}) {
    CAPTURE(value);
    CHECK_THROWS_AS(ParseCount("V", value, 64), Error);
  }
  CHECK(ParseSwitch("V", "1"));
  CHECK_FALSE(ParseSwitch("V", "0"));
  CHECK_THROWS_AS(ParseSwitch("V", "yes"), Error);
  CHECK(ParseLogLevel("V", "debug") == LogLevel::kDebug);
  CHECK_THROWS_AS(ParseLogLevel("V", "verbose"), Error);
  CHECK(ParseGeneration("V", "older") == Generation::kOlder);
  CHECK(ParseGeneration("V", "newest") == Generation::kNewest);
  CHECK(MessageOf([] { ParseGeneration("ORT_NPU_GENERATION", "950"); }) ==
        "environment variable ORT_NPU_GENERATION: expected older or newest, got '950'");
  CHECK(ParseIsa("V", "portable") == Isa::kPortable);
#if defined(__x86_64__)
  CHECK(ParseIsa("V", "avx2") == Isa::kAvx2);
  CHECK(MessageOf([] { ParseIsa("ORT_NPU_ISA", "AVX2"); }) ==
        "environment variable ORT_NPU_ISA: expected amx, avx512, avx2 or portable, got 'AVX2'");
#elif defined(__aarch64__)
  CHECK(ParseIsa("V", "neon") == Isa::kNeon);
  CHECK(MessageOf([] { ParseIsa("ORT_NPU_ISA", "avx2"); }) ==
        "environment variable ORT_NPU_ISA: expected neon_bf16, neon or portable, got 'avx2'");
#endif
}

TEST_CASE("child: the runtime refuses its environment every time" * doctest::skip()) {
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH_AS(Runtime::Instance(), doctest::Contains("environment variable ORT_NPU_"), Error);
}

TEST_CASE("Runtime::Instance names the invalid variable") {
  for (const auto& [name, value] : std::map<std::string, std::string>{{"ORT_NPU_DEVICE_COUNT", "0"},
                                                                      {"ORT_NPU_MEMORY_LIMIT", "-1"},
                                                                      {"ORT_NPU_NUM_THREADS", "many"},
                                                                      {"ORT_NPU_ISA", "sse"},
                                                                      {"ORT_NPU_AMX_FP16", "yes"},
                                                                      {"ORT_NPU_LAUNCH_BLOCKING", "yes"},
                                                                      {"ORT_NPU_LOG", "loud"}}) {
    CAPTURE(name);
    const auto child = test::RunTestCase("child: the runtime refuses its environment every time", {{name, value}});
    CAPTURE(child.output);
    CHECK(child.exit_code == 0);
  }
}

TEST_CASE("child: three devices of 48 MiB and one thread" * doctest::skip()) {
  Runtime& runtime = Runtime::Instance();
  REQUIRE(runtime.device_count() == 3);
  for (int i = 0; i < 3; ++i) {
    Device& device = runtime.device(i);
    CHECK(device.index() == i);
    CHECK(device.properties().name == "Ascend910B2");
    CHECK(device.properties().total_memory == size_t{48} << 20);
    CHECK(device.properties().compute_units == 1);
    CHECK(device.allocator().limit() == size_t{48} << 20);
    CHECK_THROWS_AS(device.allocator().Allocate(size_t{49} << 20, device.default_stream()), Error);
    device.allocator().Free(device.allocator().Allocate(size_t{40} << 20, device.default_stream()));
  }
  CHECK_THROWS_WITH(runtime.device(3), "invalid device ordinal 3: expected 0 to 2");
  CHECK_THROWS_AS(runtime.device(-1), Error);
}

TEST_CASE("the environment configures the devices") {
  const auto child =
      test::RunTestCase("child: three devices of 48 MiB and one thread", {{"ORT_NPU_DEVICE_COUNT", "3"},
                                                                          {"ORT_NPU_MEMORY_LIMIT", "48M"},
                                                                          {"ORT_NPU_DEVICE_NAME", "Ascend910B2"},
                                                                          {"ORT_NPU_NUM_THREADS", "1"}});
  CAPTURE(child.output);
  CHECK(child.exit_code == 0);
}

TEST_CASE("child: a limit above the machine's memory still fails cleanly" * doctest::skip()) {
  Device& device = Runtime::Instance().device(0);
  CHECK(device.properties().total_memory == size_t{64} << 40);
  CHECK_THROWS_AS(device.allocator().Allocate(size_t{32} << 40, device.default_stream()), Error);
  device.allocator().Free(device.allocator().Allocate(1000, device.default_stream()));
}

TEST_CASE("a limit above the machine's memory is allowed; allocating it fails") {
  const auto child = test::RunTestCase("child: a limit above the machine's memory still fails cleanly",
                                       {{"ORT_NPU_MEMORY_LIMIT", "65536G"}});
  CAPTURE(child.output);
  CHECK(child.exit_code == 0);
}

}  // namespace npu

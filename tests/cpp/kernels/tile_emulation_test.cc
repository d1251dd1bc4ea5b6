// Runs the code for AMX machines on one without: the tests of matmul and attention again, with emulated tile
// instructions.
#include <doctest/doctest.h>
#include <pthread.h>
#include <signal.h>

#include "ep/runtime/isa.h"
#include "tests/cpp/support/emulated_tiles.h"

namespace npu {
namespace {

TEST_CASE("child: AMX tiles are available" * doctest::skip()) { CHECK(Features().amx_bf16); }

void CheckWithTiles(const char* tests, const std::map<std::string, std::string>& more = {}) {
  CAPTURE(tests);
  const test::ChildResult result = test::RunWithTiles(tests, more);
  INFO(result.output);
  CHECK(result.exit_code == 0);
  CHECK(result.output.find("[tile emulator] ") != std::string::npos);
  CHECK(result.output.find("[tile emulator] 0 ") == std::string::npos);
}

TEST_CASE("matmul and attention agree with AMX tile instructions") {
  if (!test::HasKernelsWithTiles() || test::MachineHasTiles()) return;  // with tiles, tested without emulation
  CHECK(test::RunWithTiles("child: AMX tiles are available").exit_code == 0);
  for (const char* tests :
       {"Gemm matches *", "Gemm adds *", "Gemm stores *", "MatMul follows *", "MatMulInteger matches *",
        "a packed weight *", "NaN and infinities reach *", "GatedMatMul *", "MatMulAddRmsNorm *",
        "npu_quant_matmul scales*", "weight-only matmul: *", "attention: *"})
    CheckWithTiles(tests);
}

TEST_CASE("float16 matmul agrees with tile instructions for bfloat16 alone") {
  if (!test::HasKernelsWithTiles() || !Features().avx512_bf16 || test::MachineHasTiles()) return;
  for (const char* tests :
       {"Gemm matches *", "Gemm adds *", "Gemm stores equal *", "a packed weight *", "NaN and infinities reach *"})
    CheckWithTiles(tests, {{"NPU_TILE_EMULATOR_FLOAT16", "missing"}});
}

volatile sig_atomic_t signals_of_program = 0;
void CountSignal(int) { signals_of_program = signals_of_program + 1; }

// The features, detected while the program has a handler of SIGILL and this thread blocks that signal.
CpuFeatures FeaturesBesideHandler() {
  struct sigaction own = {}, doctests = {}, after = {};
  own.sa_handler = &CountSignal;
  REQUIRE(sigaction(SIGILL, &own, &doctests) == 0);
  sigset_t illegal, mask;
  sigemptyset(&illegal);
  sigaddset(&illegal, SIGILL);
  REQUIRE(pthread_sigmask(SIG_BLOCK, &illegal, nullptr) == 0);
  const CpuFeatures features = Features();
  CHECK(pthread_sigmask(SIG_UNBLOCK, &illegal, &mask) == 0);
  CHECK(sigismember(&mask, SIGILL) == 1);
  CHECK(sigaction(SIGILL, &doctests, &after) == 0);
  const bool is_restored = after.sa_handler == &CountSignal;
  CHECK(is_restored);
  CHECK(signals_of_program == 0);
  return features;
}

TEST_CASE("child: float16 is multiplied in tiles" * doctest::skip()) { CHECK(FeaturesBesideHandler().amx_fp16); }
TEST_CASE("child: float16 is not multiplied in tiles" * doctest::skip()) {
  CHECK_FALSE(FeaturesBesideHandler().amx_fp16);
}

size_t CountOf(const std::string& part, const std::string& text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("products of float16 in tiles that feature bits hide are tried on request") {
  if (!test::HasKernelsWithTiles()) return;
  const char *used = "child: float16 is multiplied in tiles", *not_used = "child: float16 is not multiplied in tiles";
  const auto check = [](const char* child, const char* emulated, const char* requested, const char* isa,
                        const char* warning) {
    CAPTURE(child);
    CAPTURE(emulated);
    CAPTURE(requested);
    const test::ChildResult result = test::RunWithTiles(
        child, {{"NPU_TILE_EMULATOR_FLOAT16", emulated}, {"ORT_NPU_AMX_FP16", requested}, {"ORT_NPU_ISA", isa}});
    CAPTURE(result.output);
    CHECK(result.exit_code == 0);
    CHECK(CountOf("ORT_NPU_AMX_FP16", result.output) == (*warning == 0 ? 0 : 1));
    CHECK(CountOf(warning, result.output) >= 1);
  };
  check(used, "hidden", "1", "amx", "");
  check(not_used, "hidden", "0", "amx", "");
  check(not_used, "missing", "1", "amx",
        "environment variable ORT_NPU_AMX_FP16=1 has no effect: this processor cannot multiply float16 in tile");
  check(not_used, "missing", "1", "avx512",
        "environment variable ORT_NPU_AMX_FP16=1 has no effect: no tile registers at level avx512");
}

TEST_CASE("float16 is right where its products in tiles are tried") {
  if (!test::HasKernelsWithTiles()) return;
  const bool has_tiles = test::MachineHasTiles();
  for (const char* tests : {"Gemm matches *", "attention: *"}) {
    CAPTURE(tests);
    // Where there are tiles, they have the instruction or lack it.
    const test::ChildResult result =
        has_tiles ? test::RunTestCase(tests, {{"ORT_NPU_ISA", "amx"}, {"ORT_NPU_AMX_FP16", "1"}})
                  : test::RunWithTiles(tests, {{"NPU_TILE_EMULATOR_FLOAT16", "hidden"}, {"ORT_NPU_AMX_FP16", "1"}});
    INFO(result.output);
    CHECK(result.exit_code == 0);
  }
}

}  // namespace
}  // namespace npu

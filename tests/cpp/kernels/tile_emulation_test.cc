// Runs the code for AMX machines on one without: the tests of matmul and attention again, with emulated tile
// instructions.
#include <doctest/doctest.h>
#include <unistd.h>

#include <climits>
#include <string>

#include "ep/runtime/isa.h"
#include "tests/cpp/support/child_process.h"

namespace npu {
namespace {

std::string FolderOfThisProgram() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
  return program.substr(0, program.rfind('/'));
}

TEST_CASE("child: AMX tiles are available" * doctest::skip()) { CHECK(Features().amx_bf16); }

TEST_CASE("matmul and attention agree with AMX tile instructions") {
  if (Features().amx_bf16 || !Features().avx512) return;  // tested without emulation, or not built for tiles
  const std::map<std::string, std::string> environment = {
      {"LD_PRELOAD", FolderOfThisProgram() + "/libnpu_tile_emulator.so"},
      {"ASAN_OPTIONS", "verify_asan_link_order=0"},  // the emulator is loaded before AddressSanitizer's library
      {"NPU_TILE_EMULATOR_REPORT", "1"},
      {"ORT_NPU_ISA", "amx"}};
  CHECK(test::RunTestCase("child: AMX tiles are available", environment).exit_code == 0);
  for (const char* tests : {"Gemm matches *", "Gemm adds *", "MatMul follows *", "MatMulInteger matches *",
                            "a packed weight *", "NaN and infinities reach *", "attention: *"}) {
    CAPTURE(tests);
    const test::ChildResult result = test::RunTestCase(tests, environment, std::chrono::minutes(30));
    INFO(result.output);
    CHECK(result.exit_code == 0);
    CHECK(result.output.find("[tile emulator] ") != std::string::npos);
    CHECK(result.output.find("[tile emulator] 0 ") == std::string::npos);
  }
}

}  // namespace
}  // namespace npu

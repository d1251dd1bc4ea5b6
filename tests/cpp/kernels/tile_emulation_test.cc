// Runs the code for AMX machines on one without: the tests of matmul and attention again, with emulated tile
// instructions.
#include <doctest/doctest.h>

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
  if (!Features().avx512 || test::MachineHasTiles()) return;  // not built for tiles, or tested without emulation
  CHECK(test::RunWithTiles("child: AMX tiles are available").exit_code == 0);
  for (const char* tests : {"Gemm matches *", "Gemm adds *", "Gemm stores *", "MatMul follows *",
                            "MatMulInteger matches *", "a packed weight *", "NaN and infinities reach *",
                            "GatedMatMul *", "npu_quant_matmul scales*", "weight-only matmul: *", "attention: *"})
    CheckWithTiles(tests);
}

TEST_CASE("float16 matmul agrees with tile instructions for bfloat16 alone") {
  if (!Features().avx512_bf16 || test::MachineHasTiles()) return;
  for (const char* tests :
       {"Gemm matches *", "Gemm adds *", "Gemm stores equal *", "a packed weight *", "NaN and infinities reach *"})
    CheckWithTiles(tests, {{"NPU_TILE_EMULATOR_FLOAT16", "0"}});
}

}  // namespace
}  // namespace npu

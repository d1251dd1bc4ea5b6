// Runs the code for AMX machines on one without: the tests of matmul and attention again, with emulated tile
// instructions.
#include <doctest/doctest.h>

#include "ep/runtime/isa.h"
#include "tests/cpp/support/emulated_tiles.h"

namespace npu {
namespace {

TEST_CASE("child: AMX tiles are available" * doctest::skip()) { CHECK(Features().amx_bf16); }

TEST_CASE("matmul and attention agree with AMX tile instructions") {
  if (!Features().avx512 || test::MachineHasTiles()) return;  // not built for tiles, or tested without emulation
  CHECK(test::RunWithTiles("child: AMX tiles are available").exit_code == 0);
  for (const char* tests : {"Gemm matches *", "Gemm adds *", "Gemm stores *", "MatMul follows *",
                            "MatMulInteger matches *", "a packed weight *", "NaN and infinities reach *",
                            "npu_quant_matmul scales*", "weight-only matmul: *", "attention: *"}) {
    CAPTURE(tests);
    const test::ChildResult result = test::RunWithTiles(tests);
    INFO(result.output);
    CHECK(result.exit_code == 0);
    CHECK(result.output.find("[tile emulator] ") != std::string::npos);
    CHECK(result.output.find("[tile emulator] 0 ") == std::string::npos);
  }
}

}  // namespace
}  // namespace npu

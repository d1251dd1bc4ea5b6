#include "ep/runtime/isa.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "tests/cpp/support/child_process.h"

namespace npu {

TEST_CASE("instruction-set levels have names") {
  CHECK(NameOf(Isa::kPortable) == std::string("portable"));
  CHECK(NameOf(Isa::kAvx2) == std::string("avx2"));
  CHECK(NameOf(Isa::kAvx512) == std::string("avx512"));
  CHECK(NameOf(Isa::kAmx) == std::string("amx"));
  CHECK(NameOf(Isa::kNeon) == std::string("neon"));
  CHECK(NameOf(Isa::kNeonBf16) == std::string("neon_bf16"));
}

TEST_CASE("a level includes the narrower ones of its architecture") {
  using Levels = std::vector<Isa>;
  CHECK((LevelsFrom(Isa::kAmx) == Levels{Isa::kAmx, Isa::kAvx512, Isa::kAvx2, Isa::kPortable}));
  CHECK((LevelsFrom(Isa::kNeonBf16) == Levels{Isa::kNeonBf16, Isa::kNeon, Isa::kPortable}));
  for (Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx, Isa::kNeon, Isa::kNeonBf16}) {
    CAPTURE(NameOf(isa));
    const Levels wider = LevelsFrom(isa == Isa::kNeon || isa == Isa::kNeonBf16 ? Isa::kNeonBf16 : Isa::kAmx);
    CHECK(LevelsFrom(isa) == Levels(std::find(wider.begin(), wider.end(), isa), wider.end()));
    CHECK(LibraryLevel(LibraryLevel(isa)) == LibraryLevel(isa));
  }
}

TEST_CASE("features agree with the active level") {
  const CpuFeatures& f = Features();
  const std::vector<Isa> levels = LevelsFrom(ActiveIsa());
  const auto has = [&](Isa isa) { return std::find(levels.begin(), levels.end(), isa) != levels.end(); };
  CHECK(has(Isa::kAvx2) == f.avx2);
  CHECK(has(Isa::kAvx512) == f.avx512);
  CHECK(has(Isa::kAmx) == (f.amx_bf16 && f.amx_int8));
  CHECK(has(Isa::kNeon) == f.neon);
  CHECK(has(Isa::kNeonBf16) == f.neon_bf16);
  if (!f.avx512) CHECK_FALSE((f.avx512_bf16 || f.avx512_fp16 || f.avx512_vnni));
  if (!f.amx_tile) CHECK_FALSE((f.amx_bf16 || f.amx_int8 || f.amx_fp16));
#if defined(__x86_64__)
  __builtin_cpu_init();
  CHECK((!has(Isa::kAvx2) || __builtin_cpu_supports("x86-64-v3")));
  CHECK((!has(Isa::kAvx512) || __builtin_cpu_supports("x86-64-v4")));
#endif
}

#if defined(__aarch64__)
TEST_CASE("the levels of ARM64 are those that the kernel lists") {
  std::ifstream in("/proc/cpuinfo");
  std::vector<std::string> listed;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("Features", 0) != 0) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::string word; words >> word;) listed.push_back(word);
    break;
  }
  if (listed.empty() || IsaFromEnvironment()) return;  // an emulator shows the file of its host
  const auto has = [&](const char* word) { return std::find(listed.begin(), listed.end(), word) != listed.end(); };
  CHECK(Features().neon == (has("asimddp") && has("asimdhp") && has("atomics")));
  CHECK(Features().neon_bf16 == (Features().neon && has("bf16") && has("i8mm")));
}
#endif

// make arm64 says which level the emulated processor has.
TEST_CASE("the widest level is found") {
  const char* expected = std::getenv("NPU_TEST_ISA");
  if (expected != nullptr) CHECK(NameOf(ActiveIsa()) == std::string(expected));
}

TEST_CASE("child: the portable level has no features" * doctest::skip()) {
  REQUIRE(ActiveIsa() == Isa::kPortable);
  const CpuFeatures& f = Features();
  CHECK_FALSE((f.avx2 || f.fma || f.f16c || f.avx_vnni || f.avx512 || f.avx512_bf16 || f.avx512_fp16 || f.avx512_vnni));
  CHECK_FALSE((f.amx_tile || f.amx_bf16 || f.amx_int8 || f.amx_fp16 || f.neon || f.neon_bf16));
}

TEST_CASE("child: a level the machine lacks is refused" * doctest::skip()) { CHECK_THROWS_AS(ActiveIsa(), Error); }

TEST_CASE("ORT_NPU_ISA restricts the features") {
  CHECK(test::RunTestCase("child: the portable level has no features", {{"ORT_NPU_ISA", "portable"}}).exit_code == 0);
  // A level that is already restricted does not show what the machine supports.
  const Isa widest = LevelsOfArchitecture().front();
  if (ActiveIsa() != widest && !IsaFromEnvironment())
    CHECK(
        test::RunTestCase("child: a level the machine lacks is refused", {{"ORT_NPU_ISA", NameOf(widest)}}).exit_code ==
        0);
}

}  // namespace npu

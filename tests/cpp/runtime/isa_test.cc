#include "ep/runtime/isa.h"

#include <doctest/doctest.h>

#include <string>

#include "ep/runtime/environment.h"
#include "ep/runtime/error.h"
#include "tests/cpp/support/child_process.h"

namespace npu {

TEST_CASE("instruction-set levels have names") {
  CHECK(NameOf(Isa::kPortable) == std::string("portable"));
  CHECK(NameOf(Isa::kAvx2) == std::string("avx2"));
  CHECK(NameOf(Isa::kAvx512) == std::string("avx512"));
  CHECK(NameOf(Isa::kAmx) == std::string("amx"));
}

TEST_CASE("features agree with the active level") {
  const CpuFeatures& f = Features();
  CHECK((ActiveIsa() >= Isa::kAvx2) == f.avx2);
  CHECK((ActiveIsa() >= Isa::kAvx512) == f.avx512);
  CHECK((ActiveIsa() >= Isa::kAmx) == (f.amx_bf16 && f.amx_int8));
  if (!f.avx512) CHECK_FALSE((f.avx512_bf16 || f.avx512_fp16 || f.avx512_vnni));
  if (!f.amx_tile) CHECK_FALSE((f.amx_bf16 || f.amx_int8 || f.amx_fp16));
#if defined(__x86_64__)
  __builtin_cpu_init();
  CHECK((ActiveIsa() == Isa::kPortable || __builtin_cpu_supports("x86-64-v3")));
  CHECK((ActiveIsa() < Isa::kAvx512 || __builtin_cpu_supports("x86-64-v4")));
#endif
}

TEST_CASE("child: the portable level has no features" * doctest::skip()) {
  REQUIRE(ActiveIsa() == Isa::kPortable);
  const CpuFeatures& f = Features();
  CHECK_FALSE((f.avx2 || f.fma || f.f16c || f.avx512 || f.avx512_bf16 || f.avx512_fp16 || f.avx512_vnni));
  CHECK_FALSE((f.amx_tile || f.amx_bf16 || f.amx_int8 || f.amx_fp16));
}

TEST_CASE("child: a level the machine lacks is refused" * doctest::skip()) { CHECK_THROWS_AS(ActiveIsa(), Error); }

TEST_CASE("ORT_NPU_ISA restricts the features") {
  CHECK(test::RunTestCase("child: the portable level has no features", {{"ORT_NPU_ISA", "portable"}}).exit_code == 0);
  // A level that is already restricted does not show what the machine supports.
  if (ActiveIsa() < Isa::kAmx && !IsaFromEnvironment())
    CHECK(test::RunTestCase("child: a level the machine lacks is refused", {{"ORT_NPU_ISA", "amx"}}).exit_code == 0);
}

}  // namespace npu

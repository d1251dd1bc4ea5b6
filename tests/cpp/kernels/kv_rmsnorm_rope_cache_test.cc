#include <string>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::test::HostTensor;
using npu::test::RunOp;
using npu::test::RunOptions;

constexpr const char* kType = "npu::NPUKvRmsnormRopeCache";
constexpr int64_t kTokens = 3, kNorm = 8, kRope = 4, kBlocks = 2, kBlock = 4;

struct Call {
  explicit Call(std::vector<int64_t> index)
      : k_cache(HostTensor::Random(DType::kFloat32, {kBlocks, kBlock, 1, kRope}, 5)),
        ckv_cache(HostTensor::Random(DType::kFloat32, {kBlocks, kBlock, 1, kNorm}, 6)),
        inputs{HostTensor::Random(DType::kFloat32, {1, 1, kTokens, kNorm + kRope}, 1),
               HostTensor::Random(DType::kFloat32, {kNorm}, 2),
               HostTensor::Random(DType::kFloat32, {1, 1, kTokens, kRope}, 3),
               HostTensor::Random(DType::kFloat32, {1, 1, kTokens, kRope}, 4),
               HostTensor::Of<int64_t>({kTokens}, index),
               k_cache,
               ckv_cache} {}
  HostTensor k_cache, ckv_cache;
  std::vector<HostTensor> inputs;
};

RunOptions Options(bool in_place) {
  RunOptions options{.attributes = {{"cache_mode", std::string("PA")}}, .outputs = 4};
  if (in_place) options.alias = {{0, 5}, {1, 6}};
  return options;
}

TEST_CASE("caches are updated in place if they alias the outputs, and copied otherwise") {
  Call apart({7, -1, 2}), together({7, -1, 2});
  const std::vector<double> k_before = apart.k_cache.values();
  const std::vector<HostTensor> a = RunOp(kType, apart.inputs, Options(false));
  const std::vector<HostTensor> b = RunOp(kType, together.inputs, Options(true));
  CHECK(apart.k_cache.values() == k_before);
  CHECK(b[0].data<void>() == together.k_cache.data<void>());
  for (size_t i = 0; i < 4; ++i) CHECK(a[i].values() == b[i].values());
  // Rows 7 and 2 are written, the token with index -1 is skipped.
  for (int64_t row = 0; row < kBlocks * kBlock; ++row) {
    const int64_t token = row == 7 ? 0 : row == 2 ? 2 : -1;
    for (int64_t i = 0; i < kRope; ++i)
      CHECK(a[0][row * kRope + i] == (token < 0 ? k_before[row * kRope + i] : a[2][token * kRope + i]));
  }
}

TEST_CASE("an out-of-range index is refused before either cache is written") {
  for (int64_t bad : {int64_t{8}, INT64_MAX}) {
    for (const char* mode : {"PA", "PA_BLK_BNSD"}) {
      Call call({0, 1, bad});
      if (std::string(mode) == "PA_BLK_BNSD") call.inputs[4] = HostTensor::Of<int64_t>({1}, {bad});
      const std::vector<double> k = call.k_cache.values(), ckv = call.ckv_cache.values();
      RunOptions options = Options(true);
      options.attributes["cache_mode"] = std::string(mode);
      CHECK_THROWS_WITH_AS(RunOp(kType, call.inputs, options), doctest::Contains("expected index in [0, 8), got"),
                           npu::Error);
      CHECK(call.k_cache.values() == k);
      CHECK(call.ckv_cache.values() == ckv);
    }
  }
}

}  // namespace

#include <cmath>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace {

using npu::DType;
using npu::Shape;
using npu::test::HostTensor;
using npu::test::RunOp;

constexpr int64_t kRows = 5, kWidth = 1601;  // several blocks of squares, and no multiple of a vector
// A float32 sum of n squares is off by at most n roundings in any order; the root halves that.
constexpr double kRstdError = (kWidth + 4) * 0x1p-25;

struct Operands {
  explicit Operands(DType dtype)
      : x1(HostTensor::Random(dtype, {kRows, kWidth}, 1)),
        x2(HostTensor::Random(dtype, {kRows, kWidth}, 2)),
        gamma(HostTensor::Random(dtype, {kWidth}, 3)) {}
  HostTensor x1, x2, gamma;
};

TEST_CASE("npu_add_rms_norm normalises the rounded sum") {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const Operands in(dtype);
    const std::vector<HostTensor> out = RunOp("npu::NPUAddRmsNorm", {in.x1, in.x2, in.gamma}, {.outputs = 3});
    const double half_ulp = dtype == DType::kFloat16 ? 0x1p-11 : dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-24;
    const double half_subnormal = dtype == DType::kFloat16 ? 0x1p-25 : 0.0;
    CHECK(out[1].shape() == Shape{kRows, 1});
    for (int64_t row = 0; row < kRows; ++row) {
      double mean = 0.0;
      for (int64_t i = row * kWidth; i < (row + 1) * kWidth; ++i) {
        const HostTensor sum = HostTensor::From(dtype, {1}, {in.x1[i] + in.x2[i]});
        CHECK(out[2][i] == sum[0]);
        mean += sum[0] * sum[0] / kWidth;
      }
      const double rstd = 1.0 / std::sqrt(mean + 1e-6);
      CHECK(std::fabs(out[1][row] - rstd) <= rstd * kRstdError);
      for (int64_t i = 0; i < kWidth; ++i) {
        const double expected = out[2][row * kWidth + i] * rstd * in.gamma[i];
        CHECK(std::fabs(out[0][row * kWidth + i] - expected) <=
              std::fabs(expected) * (half_ulp + kRstdError) + half_subnormal);
      }
    }
  }
}

TEST_CASE("npu_add_rms_norm results do not depend on shared buffers or unused outputs") {
  const Operands fresh(DType::kFloat16);
  const std::vector<HostTensor> expected =
      RunOp("npu::NPUAddRmsNorm", {fresh.x1, fresh.x2, fresh.gamma}, {.outputs = 3});
  const std::map<size_t, size_t> sharings[] = {{{2, 0}}, {{2, 1}}, {{0, 0}}, {{0, 0}, {2, 1}}, {{0, 1}, {2, 0}}};
  for (const auto& sharing : sharings) {
    const Operands in(DType::kFloat16);
    const std::vector<HostTensor> out =
        RunOp("npu::NPUAddRmsNorm", {in.x1, in.x2, in.gamma}, {.outputs = 3, .alias = sharing});
    for (size_t i = 0; i < 3; ++i) CHECK(out[i].values() == expected[i].values());
  }
  for (const std::vector<bool>& requested :
       {std::vector<bool>{true, false, false}, {false, true, false}, {false, false, true}, {true, false, true}}) {
    const std::vector<HostTensor> out =
        RunOp("npu::NPUAddRmsNorm", {fresh.x1, fresh.x2, fresh.gamma}, {.requested = requested});
    for (size_t i = 0; i < 3; ++i)
      if (requested[i]) CHECK(out[i].values() == expected[i].values());
  }
}

}  // namespace

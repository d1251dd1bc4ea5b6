// MatMulAddRmsNorm, the sum A · B + residual and its RMS norm, against a naive reference in double: whole and partial
// panels, few rows and many.
#include <cmath>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

constexpr double kEpsilon = 1e-3;

void CheckNormed(DType dtype, int64_t m, int64_t n, int64_t k) {
  CAPTURE(NameOf(dtype));
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  const HostTensor a = HostTensor::Random(dtype, {1, m, k}, 1), b = HostTensor::Random(dtype, {k, n}, 2);
  const HostTensor residual = HostTensor::Random(dtype, {1, m, n}, 3), gamma = HostTensor::Random(dtype, {n}, 4);
  const std::vector<HostTensor> out = RunOp("npu.fused::MatMulAddRmsNorm", {a, b, residual, gamma},
                                            {.attributes = {{"epsilon", kEpsilon}}, .outputs = 2, .prepack = {1}});
  const HostTensor &y = out[0], &sum = out[1];
  REQUIRE(y.shape() == Shape{1, m, n});
  REQUIRE(sum.shape() == Shape{1, m, n});
  const double rounding = dtype == DType::kFloat32 ? 0x1p-24 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
  for (int64_t i = 0; i < m; ++i) {
    double squares = 0;
    for (int64_t j = 0; j < n; ++j) {
      double expected = residual[i * n + j], magnitudes = std::fabs(expected);
      for (int64_t l = 0; l < k; ++l) {
        const double product = a[i * k + l] * b[l * n + j];
        expected += product;
        magnitudes += std::fabs(product);
      }
      // A sum of k products in float32, in any order, is off by at most about k ulps of the sum of their magnitudes.
      const double bound = (static_cast<double>(k) + 3) * 0x1p-24 * magnitudes + rounding * std::fabs(expected);
      if (!(std::fabs(sum[i * n + j] - expected) <= bound)) {
        FAIL_CHECK("sum at ", i, ", ", j, ": ", sum[i * n + j], " != ", expected);
        return;
      }
      squares += sum[i * n + j] * sum[i * n + j];
    }
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + kEpsilon);
    for (int64_t j = 0; j < n; ++j) {
      const double expected = sum[i * n + j] * rstd * gamma[j];
      // Two multiplications in float32, rstd in float32, and the result's rounding.
      if (!(std::fabs(y[i * n + j] - expected) <= (rounding + 0x1p-21) * std::fabs(expected) + 0x1p-25)) {
        FAIL_CHECK("y at ", i, ", ", j, ": ", y[i * n + j], " != ", expected);
        return;
      }
    }
  }
}

TEST_CASE("MatMulAddRmsNorm matches a naive reference") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    CheckNormed(dtype, 1, 40, 96);
    CheckNormed(dtype, 5, 16, 100);
    CheckNormed(dtype, 40, 24, 608);
    CheckNormed(dtype, 130, 96, 64);
    CheckNormed(dtype, 3, 1, 7);
  }
}

TEST_CASE("MatMulAddRmsNorm refuses operands that do not fit") {
  const auto random = [](const Shape& shape) { return HostTensor::Random(DType::kFloat32, shape, 1); };
  const HostTensor a = random({2, 4}), b = random({4, 3});
  const auto run = [&](const HostTensor& residual, const HostTensor& gamma) {
    RunOp("npu.fused::MatMulAddRmsNorm", {a, b, residual, gamma}, {.outputs = 2, .prepack = {1}});
  };
  CHECK_THROWS_WITH(run(random({1, 3}), random({3})),
                    "[MatMulAddRmsNorm] expected a residual float32 [2, 3], got float32 [1, 3]");
  CHECK_THROWS_WITH(run(random({2, 3}), random({1, 3})),
                    "[MatMulAddRmsNorm] expected gamma float32 [3], got float32 [1, 3]");
  CHECK_THROWS_WITH(run(random({2, 3}), HostTensor::Random(DType::kFloat16, {3}, 1)),
                    "[MatMulAddRmsNorm] expected gamma float32 [3], got float16 [3]");
  TestNode node("npu.fused::MatMulAddRmsNorm");
  CHECK_THROWS_WITH(node.PrePack(1, random({4})), "[MatMulAddRmsNorm] expected a matrix B, got [4]");
}

}  // namespace
}  // namespace npu::test

// GatedMatMul, silu(A · G) * (A · V), against a naive reference in double: whole and partial panels, few rows and many.
#include <cmath>

#include "doctest/doctest.h"
#include "tests/cpp/support/test_context.h"

namespace npu::test {
namespace {

struct Sum {
  double value = 0, error = 0;
};

// A sum of k products in float32, in any order, is off by at most about k ulps of the sum of their magnitudes.
Sum ProductAt(const std::vector<double>& a, const std::vector<double>& b, int64_t row, int64_t column, int64_t k,
              int64_t n) {
  Sum out;
  double magnitudes = 0;
  for (int64_t i = 0; i < k; ++i) {
    const double product = a[static_cast<size_t>(row * k + i)] * b[static_cast<size_t>(i * n + column)];
    out.value += product;
    magnitudes += std::fabs(product);
  }
  out.error = (static_cast<double>(k) + 2) * 0x1p-24 * magnitudes;
  return out;
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

void CheckGated(DType dtype, int64_t m, int64_t half, int64_t k) {
  CAPTURE(NameOf(dtype));
  CAPTURE(m);
  CAPTURE(half);
  CAPTURE(k);
  const HostTensor a = HostTensor::Random(dtype, {1, m, k}, 1), b = HostTensor::Random(dtype, {k, 2 * half}, 2);
  const HostTensor y = RunOp("npu.fused::GatedMatMul", {a, b}, {.prepack = {1}})[0];
  REQUIRE(y.shape() == Shape{1, m, half});
  REQUIRE(y.dtype() == dtype);
  const std::vector<double> av = a.values(), bv = b.values();
  // The result is rounded once; the activation is within 5e-6 where the result has 16 bits.
  const double rounding = dtype == DType::kFloat32   ? 0x1p-21
                          : dtype == DType::kFloat16 ? 0x1p-11 + 5e-6
                                                     : 0x1p-8 + 5e-6;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < half; ++j) {
      const Sum gate = ProductAt(av, bv, i, j, k, 2 * half), value = ProductAt(av, bv, i, half + j, k, 2 * half);
      const double expected = Silu(gate.value) * value.value;
      // The slope of silu is at most 1.1.
      const double bound = 1.1 * gate.error * (std::fabs(value.value) + value.error) +
                           std::fabs(Silu(gate.value)) * value.error + rounding * std::fabs(expected) + 0x1p-25;
      if (!(std::fabs(y[i * half + j] - expected) <= bound)) {
        FAIL_CHECK("at ", i, ", ", j, ": ", y[i * half + j], " != ", expected);
        return;
      }
    }
  }
}

TEST_CASE("GatedMatMul matches a naive reference") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    CheckGated(dtype, 1, 40, 96);
    CheckGated(dtype, 5, 16, 100);
    CheckGated(dtype, 40, 24, 608);
    CheckGated(dtype, 130, 96, 64);
    CheckGated(dtype, 3, 1, 7);
  }
}

TEST_CASE("GatedMatMul takes the limits of silu") {
  const HostTensor a = HostTensor::Of<float>({5, 1}, {1e30f, -1e30f, 0.0f, NAN, -40.0f});
  const HostTensor b = HostTensor::Of<float>({1, 2}, {1.0f, 1.0f});
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    CAPTURE(NameOf(dtype));
    HostTensor left(dtype, a.shape()), right(dtype, b.shape());
    for (int64_t i = 0; i < a.elements(); ++i) left.Set(i, a[i]);
    for (int64_t i = 0; i < b.elements(); ++i) right.Set(i, b[i]);
    const HostTensor y = RunOp("npu.fused::GatedMatMul", {left, right}, {.prepack = {1}})[0];
    CHECK(y[0] == INFINITY);
    CHECK(y[1] == 0.0);
    CHECK(y[2] == 0.0);
    CHECK(std::isnan(y[3]));
    CHECK(y[4] == doctest::Approx(1600 * std::exp(-40.0)).epsilon(dtype == DType::kFloat32 ? 1e-6 : 0x1p-8));
  }
}

TEST_CASE("GatedMatMul refuses a weight that has no two halves") {
  TestNode node("npu.fused::GatedMatMul");
  CHECK_THROWS_WITH(node.PrePack(1, HostTensor::Random(DType::kFloat32, {4, 3}, 1)),
                    "[GatedMatMul] expected a matrix B of an even number of columns, got [4, 3]");
}

}  // namespace
}  // namespace npu::test

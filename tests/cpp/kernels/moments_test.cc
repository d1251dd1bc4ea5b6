#include "ep/kernels/normalization/moments.h"

#include <cmath>
#include <vector>

#include "doctest/doctest.h"

namespace {

TEST_CASE("the variance of a row far from zero stays accurate") {
  // Multiples of 1/64 around 4096 are exact in float32, but their squares are not.
  for (int64_t n : {1, 255, 256, 257, 5000}) {
    CAPTURE(n);
    std::vector<float> row(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) row[i] = 4096.0f + static_cast<float>(i * 37 % 129 - 64) / 64.0f;
    double mean = 0.0, variance = 0.0;
    for (float v : row) mean += v / static_cast<double>(n);
    for (float v : row) variance += (v - mean) * (v - mean) / static_cast<double>(n);
    const npu::Moments m =
        npu::RowMoments(n, 1e-6, [&](int64_t begin, int64_t /*count*/) { return row.data() + begin; });
    // This file is compiled without vectorisation: sums of 256 values near 4096 lose up to 256 * 2^-5 * 2^-8.
    CHECK(std::fabs(m.mean - mean) <= 4096 * 0x1p-20);
    const double rstd = 1.0 / std::sqrt(variance + 1e-6);
    if (n > 1) CHECK(std::fabs(m.rstd - rstd) <= rstd * 1e-3);
  }
}

TEST_CASE("absent weight and bias default to one and zero") {
  const std::vector<float> row{1.0f, 2.0f, 3.0f, 4.0f}, weights{1.0f, 0.5f, 2.0f, 1.0f};
  std::vector<float> y(4);
  const auto load = [&](int64_t begin, int64_t /*count*/) { return row.data() + begin; };
  const float* absent = nullptr;
  npu::NormalizeRow(4, npu::Moments{2.0f, 2.0f}, load, absent, absent, y.data());
  CHECK(y == std::vector<float>{-2.0f, 0.0f, 2.0f, 4.0f});
  npu::NormalizeRow(4, npu::Moments{2.0f, 2.0f}, load, weights.data(), absent, y.data());
  CHECK(y == std::vector<float>{-2.0f, 0.0f, 4.0f, 4.0f});
  npu::NormalizeRow(4, npu::Moments{2.0f, 2.0f}, load, absent, weights.data(), y.data());
  CHECK(y == std::vector<float>{-1.0f, 0.5f, 4.0f, 5.0f});
}

}  // namespace

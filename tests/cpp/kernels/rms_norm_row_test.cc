#include <cmath>
#include <random>
#include <vector>

#include "doctest/doctest.h"
#include "ep/kernels/normalization/rms_norm.h"

namespace {

using npu::BFloat16;
using npu::Float16;

template <class T>
std::vector<T> Random(int64_t n, double scale, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, static_cast<float>(scale));
  std::vector<T> values(static_cast<size_t>(n));
  for (T& v : values) v = npu::FromFloat<T>(normal(generator));
  return values;
}

// This file is compiled without vectorisation, so a block of 256 squares is summed in sequence: rounding errors of up
// to half an ulp add like a random walk to 16 of them, which the root halves.
constexpr double kRstdError = 16 * 0x1p-24;

// The max |y - expected| allowed: that of rstd, two products, and half an ulp of T at the result.
template <class T>
double Tolerance(double expected) {
  const double half_ulp = std::is_same_v<T, Float16> ? 0x1p-11 : std::is_same_v<T, BFloat16> ? 0x1p-8 : 0x1p-24;
  return std::fabs(expected) * (half_ulp + kRstdError + 2 * 0x1p-24) + 0x1p-25;
}

template <class T, class Gamma>
void CheckRow(int64_t n, double scale) {
  CAPTURE(n);
  CAPTURE(scale);
  const std::vector<T> x = Random<T>(n, scale, 1);
  const std::vector<Gamma> gamma = Random<Gamma>(n, 1.0, 2);
  double mean = 0.0;
  for (T v : x) mean += double{npu::ToFloat(v)} * npu::ToFloat(v) / static_cast<double>(n);
  const double rstd = 1.0 / std::sqrt(mean + 1e-6);

  std::vector<T> in_place = x;
  const float got = npu::RmsNormRow(in_place.data(), gamma.data(), 1e-6, in_place.data(), n);
  CHECK(std::fabs(got - rstd) <= rstd * kRstdError);
  for (int64_t i = 0; i < n; ++i) {
    const double expected = npu::ToFloat(x[i]) * rstd * npu::ToFloat(gamma[i]);
    const double difference = std::fabs(npu::ToFloat(in_place[i]) - expected);
    if (difference > Tolerance<T>(expected))
      FAIL_CHECK("element ", i, ": ", npu::ToFloat(in_place[i]), " != ", expected);
  }
}

TEST_CASE("an RMS-normalised row matches a double reference, in place, for every length") {
  for (int64_t n : {1, 2, 15, 16, 17, 255, 256, 257, 576, 4097, 16384}) {
    for (double scale : {1.0, 1e-3, 300.0}) {
      CheckRow<float, float>(n, scale);
      CheckRow<Float16, Float16>(n, scale);
      CheckRow<Float16, float>(n, scale);
      CheckRow<BFloat16, BFloat16>(n, scale);
      CheckRow<BFloat16, float>(n, scale);
    }
  }
}

TEST_CASE("a float16 row whose squares overflow float16 is normalised in float32") {
  const std::vector<Float16> x(1000, npu::FromFloat<Float16>(60000.0f)), gamma(1000, npu::FromFloat<Float16>(1.0f));
  std::vector<Float16> y(1000);
  npu::RmsNormRow(x.data(), gamma.data(), 1e-6, y.data(), 1000);
  CHECK(npu::ToFloat(y[999]) == 1.0f);
}

TEST_CASE("NaN and infinity propagate") {
  const std::vector<float> gamma(4, 1.0f);
  std::vector<float> y(4);
  CHECK(std::isnan(npu::RmsNormRow(std::vector<float>{1, NAN, 1, 1}.data(), gamma.data(), 1e-6, y.data(), 4)));
  CHECK(std::isnan(y[0]));
  CHECK(npu::RmsNormRow(std::vector<float>{1, INFINITY, 1, 1}.data(), gamma.data(), 1e-6, y.data(), 4) == 0.0f);
  CHECK(std::isnan(y[1]));
}

}  // namespace

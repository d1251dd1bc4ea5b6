// The exponential of attention weights that are rounded to bfloat16, against the C library's in double precision.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ep/kernels/attention/core/simd.h"

namespace npu::attention {
namespace {

float RoughOf(float x) { return RoughExp2(Broadcast(x))[0]; }

// The sums of the weights, which are a result in float32, have a relative error of 1e-5.
TEST_CASE("the exponential of bfloat16 weights is within 3.5e-6, exact at 0 and 0 below 2^-126") {
  double worst = 0;
  for (float x = -126.0f; x <= 0.0f; x += 0x1p-9f)
    worst = std::max(worst, std::fabs(RoughOf(x) / std::exp2(double{x}) - 1));
  CHECK(worst <= 3.5e-6);
  CHECK(RoughOf(0.0f) == 1.0f);
  CHECK(RoughOf(-1.0f) == 0.5f);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {-126.6f, -1000.0f, -1e30f, -kInfinity}) CHECK(RoughOf(x) == 0.0f);
  CHECK(std::isnan(RoughOf(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace npu::attention

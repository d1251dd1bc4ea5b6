// The accuracy of the functions that ep/kernels/elementwise/real.h implements.
#include "ep/kernels/elementwise/real.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace {

using namespace npu;

// The max error in ulp of the result, over floats spaced evenly over the bit patterns, including NaN and infinities.
template <class F, class G>
double LargestError(F f, G exact) {
  double largest = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 10007) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const double expected = exact(static_cast<double>(x));
    const float got = f(x), rounded = static_cast<float>(expected);
    double error = 0;
    if (std::isnan(expected) || std::isinf(rounded)) {
      error = (std::isnan(expected) && std::isnan(got)) || got == rounded ? 0 : HUGE_VAL;
    } else {
      int exponent = -125;
      if (expected != 0) std::frexp(expected, &exponent);
      error = std::fabs(got - expected) / std::ldexp(1.0, std::max(exponent, -125) - 24);
    }
    largest = std::max(largest, std::isnan(error) ? HUGE_VAL : error);
  }
  return largest;
}

TEST_CASE("elementary functions of float: expm1 and log1p are accurate for every argument") {
  CHECK(LargestError([](float x) { return real::Expm1(x); }, [](double x) { return std::expm1(x); }) <= 1.6);
  CHECK(LargestError([](float x) { return real::Log1p(x); }, [](double x) { return std::log1p(x); }) <= 1.6);
  CHECK(std::signbit(real::Expm1(-0.0f)));
  CHECK(std::signbit(real::Log1p(-0.0f)));
  CHECK(real::Log1p(-1.0f) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("elementary functions of float: log sigmoid keeps its tails and NaN") {
  CHECK(real::LogSigmoid(-200.0f) == -200.0f);
  CHECK(real::LogSigmoid(-std::numeric_limits<float>::infinity()) == -std::numeric_limits<float>::infinity());
  CHECK(real::LogSigmoid(20.0f) == doctest::Approx(-std::exp(-20.0)).epsilon(1e-6));
  CHECK(std::isnan(real::LogSigmoid(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace

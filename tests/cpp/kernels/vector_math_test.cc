// The accuracy bounds that ep/kernels/vector_math.h states. The header is compiled here with the tests'
// flags; the kernel libraries' flags are covered by the operators' own tests.
#include "ep/kernels/vector_math.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "ep/kernels/convert.h"

namespace {

using namespace npu;

// |got - expected| in ulp of a float near `expected`.
double UlpError(double expected, float got) {
  if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) && std::isnan(got) ? 0.0 : HUGE_VAL;
  const float rounded = static_cast<float>(expected);
  if (std::isinf(rounded)) return got == rounded ? 0.0 : HUGE_VAL;
  int exponent = -125;
  if (expected != 0) std::frexp(expected, &exponent);
  return std::fabs(got - expected) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

// The max error over floats spaced evenly over the bit patterns, including NaN and infinities.
template <class F, class G, class In>
double LargestError(F f, G exact, In in) {
  double largest = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 20011) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (in(x)) largest = std::max(largest, UlpError(exact(static_cast<double>(x)), f(x)));
  }
  for (float x : {0.0f, -0.0f, 1.0f, -1.0f, std::numeric_limits<float>::infinity(),
                  -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(),
                  std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max()}) {
    if (in(x)) largest = std::max(largest, UlpError(exact(static_cast<double>(x)), f(x)));
  }
  return largest;
}

bool Any(float) { return true; }

TEST_CASE("vector math: the documented error bounds hold") {
  CHECK(LargestError(math::Exp, [](double x) { return std::exp(x); }, Any) <= 1.1);
  CHECK(LargestError(math::Log, [](double x) { return std::log(x); }, Any) <= 0.9);
  CHECK(LargestError(math::Tanh, [](double x) { return std::tanh(x); }, Any) <= 1.4);
  CHECK(LargestError(math::Erf, [](double x) { return std::erf(x); }, Any) <= 1.4);
  CHECK(LargestError(
            math::Sigmoid, [](double x) { return std::exp(-std::max(-x, 0.0)) / (1 + std::exp(-std::fabs(x))); },
            Any) <= 2.5);
  CHECK(LargestError(
            math::Exp2OfMinus, [](double x) { return std::exp2(-x); }, [](float x) { return x >= 0 && x <= 126; }) <=
        2.2);
  CHECK(math::Exp2OfMinus(127.0f) == 0.0f);
  CHECK(LargestError(
            math::Log1pSmall, [](double x) { return std::log1p(x); }, [](float x) { return x >= 0 && x <= 1; }) <= 1.4);
  const auto bounded = [](float x) { return std::fabs(x) <= math::kTrigonometricBound; };
  CHECK(LargestError(math::Sin, [](double x) { return std::sin(x); }, bounded) <= 1.6);
  CHECK(LargestError(math::Cos, [](double x) { return std::cos(x); }, bounded) <= 1.6);
}

TEST_CASE("vector math: sine of a row accepts any argument and runs in place") {
  float x[] = {0.5f, -2.0f, 1e9f, 3e38f, -1e30f, std::numeric_limits<float>::infinity()};
  float y[6];
  math::SinRow(x, y, 6);
  for (int i = 0; i < 6; ++i) CHECK(UlpError(std::sin(static_cast<double>(x[i])), y[i]) <= 1.6);
  math::CosRow(x, y, 6);
  for (int i = 0; i < 6; ++i) CHECK(UlpError(std::cos(static_cast<double>(x[i])), y[i]) <= 1.6);
  math::SinRow(y, y, 6);
  CHECK(UlpError(std::sin(std::cos(0.5)), y[0]) <= 2.0);
}

TEST_CASE("vector math: signs of zero") {
  CHECK(std::signbit(math::Tanh(-0.0f)));
  CHECK(std::signbit(math::Erf(-0.0f)));
  CHECK(std::signbit(math::Sin(-0.0f)));
}

TEST_CASE("convert: every half survives a round trip, and rows agree with single elements") {
  std::vector<Float16> halves(65536);
  std::vector<BFloat16> brains(65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    halves[i].bits = static_cast<uint16_t>(i);
    brains[i].bits = static_cast<uint16_t>(i);
  }
  std::vector<float> floats(65536);
  std::vector<Float16> halves_back(65536);
  std::vector<BFloat16> brains_back(65536);
  int wrong = 0;
  ToFloat(halves.data(), floats.data(), 65535);  // one less than a multiple of the vector width
  FromFloat(floats.data(), halves_back.data(), 65535);
  for (size_t i = 0; i < 65535; ++i) {
    wrong += std::bit_cast<uint32_t>(floats[i]) != std::bit_cast<uint32_t>(ToFloat(halves[i]));
    wrong += std::isnan(floats[i]) ? (halves_back[i].bits & 0x7e00) != 0x7e00 : halves_back[i].bits != halves[i].bits;
  }
  ToFloat(brains.data(), floats.data(), 65535);
  FromFloat(floats.data(), brains_back.data(), 65535);
  for (size_t i = 0; i < 65535; ++i) {
    wrong += std::isnan(floats[i]) ? !std::isnan(ToFloat(brains_back[i])) : brains_back[i].bits != brains[i].bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("convert: floats round to the nearest half, ties to even") {
  const auto half = [](float v) { return FromFloat<Float16>(v).bits; };
  CHECK(half(65504.0f) == 0x7bff);
  CHECK(half(65519.99f) == 0x7bff);
  CHECK(half(65520.0f) == 0x7c00);
  CHECK(half(-1e30f) == 0xfc00);
  CHECK(half(0x1p-24f) == 0x0001);
  CHECK(half(0x1p-25f) == 0x0000);  // a tie, to even
  CHECK(half(0x1.000002p-25f) == 0x0001);
  CHECK(half(1.0f + 0x1p-11f) == 0x3c00);  // a tie, to even
  CHECK(half(1.0f + 0x3p-11f) == 0x3c02);
  CHECK(FromFloat<BFloat16>(1.0f + 0x1p-8f).bits == 0x3f80);
  CHECK(FromFloat<BFloat16>(1.0f + 0x3p-8f).bits == 0x3f82);
  CHECK(FromFloat<BFloat16>(std::numeric_limits<float>::max()).bits == 0x7f80);
}

}  // namespace

// Elementary functions of float, as vector_math.h has them, and of double, as the C library has them, under one name:
// a formula that uses them is written once. NaN goes in and comes out. Of those that vector_math.h has not, the largest
// error is 1.6 units in the last place (tests/cpp/kernels/real_test.cc).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ep/kernels/vector_math.h"

namespace npu::real {

inline float Exp(float x) { return math::Exp(x); }
inline double Exp(double x) { return std::exp(x); }

inline float Log(float x) { return math::Log(x); }
inline double Log(double x) { return std::log(x); }

inline float Tanh(float x) { return math::Tanh(x); }
inline double Tanh(double x) { return std::tanh(x); }

inline float Erf(float x) { return math::Erf(x); }
inline double Erf(double x) { return std::erf(x); }

inline float Sigmoid(float x) { return math::Sigmoid(x); }
inline double Sigmoid(double x) {
  const double z = std::exp(-std::fabs(x));
  return (x < 0 ? z : 1.0) / (1.0 + z);
}

// e^x - 1. With e^x = 2^n (1 + q), that is 2^n q + (2^n - 1), where neither term is rounded when n is 0 and nothing
// cancels when it is not; by halves, so that 2^n stays finite.
inline float Expm1(float x) {
  float a = x > 89.0f ? 89.0f : x;
  a = a < -20.0f ? -20.0f : a;  // -1, rounded
  const float shifted = a * 0x1.715476p+0f + math::kRoundMagic;
  const float n = shifted - math::kRoundMagic;
  const float r = (a - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  const float q = r + r * r * math::ExpTail(r);
  const float half = math::PowerOfTwo(
      static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(math::kRoundMagic)) - 1);
  return std::copysign(2.0f * (half * q + (half - 0.5f)), x);  // -0 stays -0
}
inline double Expm1(double x) { return std::expm1(x); }

// log(1 + x): what 1 + x lost in rounding is its relative error, which the logarithm adds again.
inline float Log1p(float x) {
  const float u = 1.0f + x;
  const float log = math::Log(u);
  const float exact = std::copysign(log + (x - (u - 1.0f)) / u, x);  // -0 stays -0
  return u > 0.0f && u < std::numeric_limits<float>::infinity() ? exact : log;
}
inline double Log1p(double x) { return std::log1p(x); }

// log(1 + e^-|x|): what softplus and its like are made of.
inline float Log1pExpOfMinusAbs(float x) { return math::Log1pSmall(math::Exp(-std::fabs(x))); }
inline double Log1pExpOfMinusAbs(double x) { return std::log1p(std::exp(-std::fabs(x))); }

template <class C>
C LogSigmoid(C x) {
  return (x > 0 ? C{0} : x) - Log1pExpOfMinusAbs(x);
}

}  // namespace npu::real

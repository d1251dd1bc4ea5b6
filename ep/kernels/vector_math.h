// Elementary functions of float that the compiler vectorises when they are called in a plain loop: no branch, no table,
// no call. All arguments are handled, including NaN, infinities, signed zeros and denormals.
//
// Maximum error in units in the last place, measured against the C library in double over a fifth of all floats, with
// and without FMA (tests/cpp/kernels/vector_math_test.cc checks these bounds):
//
//   Exp           1.1    denormal results included
//   Exp2OfMinus   2.2    arguments in [0, 126]
//   Log           0.9
//   Log1pSmall    1.4    arguments in [0, 1]
//   Tanh          1.4
//   Sigmoid       2.5    denormal results included
//   Erf           1.4
//   Sin, Cos      1.6    |x| <= kTrigonometricBound
//   SinRow, CosRow       as Sin and Cos; beyond the bound, the C library's
//
// double uses the C library: no model spends its time there.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace npu::math {

// Adding and subtracting this rounds to the nearest integer, which is then in the low bits.
inline constexpr float kRoundMagic = 0x1.8p23f;

// 2^n for n in [-127, 128], with 0 and infinity at the ends.
inline float PowerOfTwo(int32_t n) { return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23); }

// (exp(r) - 1 - r) / r² for |r| <= ln(2) / 2.
inline float ExpTail(float r) {
  float p = 0x1.6a4f88p-10f;
  p = p * r + 0x1.123988p-7f;
  p = p * r + 0x1.5558aep-5f;
  p = p * r + 0x1.555492p-3f;
  return p * r + 0x1.fffffcp-2f;
}

inline float Exp(float x) {
  // Beyond these the result is 0 or infinity; the comparisons keep NaN.
  float a = x > 89.0f ? 89.0f : x;
  a = a < -105.0f ? -105.0f : a;
  const float shifted = a * 0x1.715476p+0f + kRoundMagic;
  const float n = shifted - kRoundMagic;
  // The high part of ln 2 has few bits: n * high is exact.
  const float r = (a - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  const float p = 1.0f + (r + r * r * ExpTail(r));
  // In two steps, so that overflow and denormal results are rounded only once.
  const int32_t e = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundMagic));
  const int32_t half = e >> 1;
  return p * PowerOfTwo(half) * PowerOfTwo(e - half);
}

// 2^-x for x in [0, 127], for sums in which denormals may be flushed to 0, as they are here.
inline float Exp2OfMinus(float x) {
  const float shifted = kRoundMagic - x;
  const float f = (kRoundMagic - shifted) - x;
  float p = 0x1.5bba12p-10f;  // minimax on [-1/2, 1/2], exact at 0
  p = p * f + 0x1.3cea88p-7f;
  p = p * f + 0x1.c6b752p-5f;
  p = p * f + 0x1.ebf9bcp-3f;
  p = p * f + 0x1.62e42ap-1f;
  p = p * f + 1.0f;
  return p * PowerOfTwo(static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundMagic)));
}

inline float Log(float x) {
  const bool denormal = x < std::numeric_limits<float>::min();
  const float scaled = denormal ? x * 0x1p25f : x;
  const float bias = denormal ? 25.0f : 0.0f;
  const uint32_t bits = std::bit_cast<uint32_t>(scaled);
  // Mantissa in [2/3, 4/3), so that log1p sees a small argument on both sides.
  const int32_t e = static_cast<int32_t>(bits - 0x3f2aaaabu) & static_cast<int32_t>(0xff800000u);
  const float f = std::bit_cast<float>(bits - static_cast<uint32_t>(e)) - 1.0f;
  const float n = static_cast<float>(e >> 23) - bias;
  float p = -0x1.07de12p-3f;
  p = p * f + 0x1.1e7060p-3f;
  p = p * f - 0x1.f32756p-4f;
  p = p * f + 0x1.1ed4e0p-3f;
  p = p * f - 0x1.559ccap-3f;
  p = p * f + 0x1.99d054p-3f;
  p = p * f - 0x1.fffef8p-3f;
  p = p * f + 0x1.555506p-2f;
  const float s = f * f;
  const float low = s * f * p + n * 0x1.7f7d1cp-20f;
  float y = n * 0x1.62e4p-1f + (f + (low - 0.5f * s));
  y = x == std::numeric_limits<float>::infinity() ? x : y;
  y = x == 0.0f ? -std::numeric_limits<float>::infinity() : y;
  return x >= 0.0f ? y : std::numeric_limits<float>::quiet_NaN();
}

// log(1 + x) for x in [0, 1]: used by softplus and log-sum-exp.
inline float Log1pSmall(float x) {
  const float u = 1.0f + x;
  return Log(u) + (x - (u - 1.0f)) / u;
}

inline float Tanh(float x) {
  const float a = std::fabs(x);
  const float s = x * x;
  float p = -0x1.828776p-8f;
  p = p * s + 0x1.54c3c2p-6f;
  p = p * s - 0x1.b89abap-5f;
  p = p * s + 0x1.1109bep-3f;
  p = p * s - 0x1.55553ep-2f;
  const float small = x + x * (s * p);
  const float large = 1.0f - 2.0f / (Exp(a + a) + 1.0f);
  return std::copysign(a < 0.6f ? small : large, x);  // also for small: -0 stays -0
}

inline float Sigmoid(float x) {
  // 1 / (1 + e^-x) with both parts scaled, so that e^-x stays finite until the result is less than any denormal. For x
  // >= 43.5 the result is 1; where e^-x is infinite, it is 0.
  constexpr int32_t kScaleExponent = -64;
  constexpr float kScale = 0x1p-64f;
  float a = x > 43.5f ? -43.5f : -x;
  a = a > 133.08f ? 133.08f : a;
  const float shifted = a * 0x1.715476p+0f + kRoundMagic;
  const float n = shifted - kRoundMagic;
  const float r = (a - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  const float p = 1.0f + (r + r * r * ExpTail(r));
  const int32_t e = static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kRoundMagic));
  return kScale / (kScale + p * PowerOfTwo(e + kScaleExponent));
}

inline float Erf(float x) {
  const float a = std::fabs(x);
  const float s = x * x;
  float p = 0x1.4771fcp-14f;
  p = p * s - 0x1.a3515ep-11f;
  p = p * s + 0x1.53f224p-8f;
  p = p * s - 0x1.b7f71ap-6f;
  p = p * s + 0x1.ce2ce6p-4f;
  p = p * s - 0x1.81273ep-2f;
  p = p * s + 0x1.06eba8p-3f;
  const float small = x + x * p;
  // 1 - erfc, with -log(erfc) as a polynomial; for |x| >= 4 the result is 1.
  const float c = a > 4.0f ? 4.0f : a;
  float q = -0x1.86d73ap-13f;
  q = q * c + 0x1.82582ep-9f;
  q = q * c - 0x1.65ca82p-6f;
  q = q * c + 0x1.a652f2p-4f;
  q = q * c + 0x1.46baf2p-1f;
  q = q * c + 0x1.2088eap+0f;
  q = q * c + 0x1.661cb2p-12f;
  const float large = std::copysign(1.0f - Exp(-q), x);
  return a < 1.0f ? small : large;
}

inline constexpr float kTrigonometricBound = 0x1p25f;

namespace internal {

// sin(x + quarter_turns * pi / 2). The argument is reduced in double, where pi/2 in two parts is exact enough up to the
// bound with and without FMA.
inline float SinShifted(float x, int32_t quarter_turns) {
  constexpr double kMagic = 0x1.8p52;
  const double d = x;
  const double shifted = d * 0x1.45f306dc9c883p-1 + kMagic;
  const double n = shifted - kMagic;
  const float r = static_cast<float>((d - n * 0x1.921fb54p+0) - n * 0x1.10b4611a62633p-30);
  const int32_t quadrant = static_cast<int32_t>(std::bit_cast<uint64_t>(shifted)) + quarter_turns;
  const float s = r * r;
  float sine = -0x1.9953fep-13f;
  sine = sine * s + 0x1.110778p-7f;
  sine = sine * s - 0x1.555546p-3f;
  sine = s == 0.0f ? r : r + r * (s * sine);  // -0 stays -0
  float cosine = 0x1.99e80cp-16f;
  cosine = cosine * s - 0x1.6c0c28p-10f;
  cosine = cosine * s + 0x1.55554ap-5f;
  cosine = 1.0f + (s * s * cosine - 0.5f * s);
  const float y = (quadrant & 1) != 0 ? cosine : sine;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) ^ (static_cast<uint32_t>(quadrant & 2) << 30));
}

// `fast`: a lambda, since a loop of calls through a pointer stays scalar.
template <class Fast, class Exact>
void TrigonometricRow(const float* x, float* y, int64_t n, Fast fast, Exact exact) {
  constexpr int64_t kBlock = 256;  // tested as a whole, so that the usual case stays vectorised
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    int far = 0;
    for (int64_t i = begin; i < end; ++i) far |= !(std::fabs(x[i]) <= kTrigonometricBound);
    if (far == 0) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) y[i] = fast(x[i]);
    } else {
      for (int64_t i = begin; i < end; ++i) y[i] = exact(x[i]);
    }
  }
}

}  // namespace internal

// For |x| <= kTrigonometricBound, which holds for every rotary angle; use the Row forms for arguments that a model may
// make arbitrarily large.
inline float Sin(float x) { return internal::SinShifted(x, 0); }
inline float Cos(float x) { return internal::SinShifted(x, 1); }

// y[i] = sin(x[i]) for every argument; y may be x.
inline void SinRow(const float* x, float* y, int64_t n) {
  internal::TrigonometricRow(x, y, n, [](float v) { return Sin(v); }, [](float v) { return std::sin(v); });
}
inline void CosRow(const float* x, float* y, int64_t n) {
  internal::TrigonometricRow(x, y, n, [](float v) { return Cos(v); }, [](float v) { return std::cos(v); });
}

}  // namespace npu::math

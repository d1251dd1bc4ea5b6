// The values of a group as integers of int8, rounded half to even.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ep/kernels/quantization/extremes.h"
#include "ep/kernels/quantization/rounding.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace npu::gemm {

inline constexpr int64_t kMostRounded = 128;  // values at a time

// f(count), which is a constant where groups often are as long: its loops then have neither ends nor masks.
template <class F>
inline auto WithCount(int64_t count, const F& f) {
  switch (count) {
    case 32:
      return f(std::integral_constant<int64_t, 32>());
    case 64:
      return f(std::integral_constant<int64_t, 64>());
    case 128:
      return f(std::integral_constant<int64_t, 128>());
    default:
      return f(count);
  }
}

#if defined(__AVX512F__)

// In vectors whose ends are masked: loops over the few values of a group would mostly be their own beginning and end.
inline __mmask16 LanesOf(int64_t values) { return static_cast<__mmask16>(values < 16 ? (1 << values) - 1 : 0xffff); }

// As MaxMagnitudeBits.
template <class Count>
inline uint32_t GroupMagnitudeBits(const float* x, Count count) {
  __m512i most = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int64_t i = 0; i < count; i += 16)
    most = _mm512_max_epu32(
        most, _mm512_and_si512(_mm512_maskz_loadu_epi32(LanesOf(count - i), x + i), _mm512_set1_epi32(0x7fffffff)));
  return _mm512_reduce_max_epu32(most);
}

// store(i, sixteen bytes) of values from x[i] on: x * factor, saturated, + shift; NaN becomes 0, as what is missing at
// the end does. Returns the sum without shifts.
template <class Count, class Store>
inline int32_t RoundSixteens(const float* x, Count count, float factor, int shift, const Store& store) {
  __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 scaled = _mm512_maskz_loadu_ps(LanesOf(count - i), x + i) * _mm512_set1_ps(factor);
    const __mmask16 numbers = _mm512_cmp_ps_mask(scaled, scaled, _CMP_ORD_Q);
    const __m512 high = _mm512_min_ps(scaled, _mm512_set1_ps(127.0f));
    const __m512i whole = _mm512_cvtps_epi32(_mm512_maskz_max_ps(numbers, high, _mm512_set1_ps(-128.0f)));
    sum = _mm512_add_epi32(sum, whole);
    store(i, _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, _mm512_set1_epi32(shift))));
  }
  return _mm512_reduce_add_epi32(sum);
}

// Into `out`, which has room for kMostRounded.
template <class Count>
inline int32_t RoundGroup(const float* x, Count count, float factor, int shift, int8_t* out) {
  // Whole vectors: what a masked store wrote is not forwarded to the loads that follow.
  return RoundSixteens(x, count, factor, shift, [out](int64_t i, __m128i bytes) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), bytes);
  });
}

// Four bytes at a time, `step` bytes apart; the last four are completed by zeros.
template <class Count>
inline int32_t RoundFours(const float* x, Count count, float factor, int shift, int8_t* out, int64_t step) {
  return RoundSixteens(x, count, factor, shift, [=](int64_t i, __m128i bytes) {
    int32_t fours[4];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(fours), bytes);
    const int64_t end = count - i < 16 ? (count - i + 3) / 4 : 4;
    int8_t* to = out + i / 4 * step;
#pragma GCC unroll 4
    for (int64_t j = 0; j < end; ++j, to += step) __builtin_memcpy(to, fours + j, 4);
  });
}

#else

inline uint32_t GroupMagnitudeBits(const float* x, int64_t count) { return MaxMagnitudeBits(x, count, 0); }

inline int32_t RoundGroup(const float* x, int64_t count, float factor, int shift, int8_t* out) {
  alignas(64) int32_t whole[kMostRounded];
  int32_t sum = 0;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) whole[i] = RoundSaturated(x[i] * factor, -128.0f, 127.0f);
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += whole[i];
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int8_t>(whole[i] + shift);
  return sum;
}

inline int32_t RoundFours(const float* x, int64_t count, float factor, int shift, int8_t* out, int64_t step) {
  alignas(64) int8_t rounded[kMostRounded];
  int32_t sum = 0;
  for (int64_t i = 0; i < count; i += kMostRounded) {
    const int64_t some = std::min(kMostRounded, count - i);
    sum += RoundGroup(x + i, some, factor, shift, rounded);
    std::fill(rounded + some, rounded + (some + 3) / 4 * 4, static_cast<int8_t>(shift));
    for (int64_t j = 0; j < some; j += 4, out += step) __builtin_memcpy(out, rounded + j, 4);
  }
  return sum;
}

#endif

}  // namespace npu::gemm

// Vectorised conversion of rows of 16-bit floats to and from float. Conversions round to nearest even and preserve
// denormals and NaN.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ep/runtime/kernel_api.h"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace npu {

namespace internal {

#if defined(__aarch64__)

inline float HalfToFloat(uint16_t half) { return static_cast<float>(std::bit_cast<__fp16>(half)); }
inline uint16_t FloatToHalf(float value) { return std::bit_cast<uint16_t>(static_cast<__fp16>(value)); }

#else

// Branch-free, so that the loop vectorises without half-precision conversion instructions, too.
inline float HalfToFloat(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  // A multiplication adjusts the exponent, which also normalises denormals.
  const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x00400000u : 0u);
  return std::bit_cast<float>((magnitude >= 0x7c00u ? special : finite) |
                              (static_cast<uint32_t>(half & 0x8000u) << 16));
}

inline uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 0.5 aligns a small value's mantissa with that of a denormal half and rounds it.
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t finite = magnitude < 0x38800000u ? small : normal;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const uint32_t special = magnitude > 0x7f800000u ? nan : 0x7c00u;
  const uint32_t result = magnitude >= 0x477ff000u ? special : finite;
  return static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u));
}

#endif

inline uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#if defined(__AVX512F__)
// The same of 16 floats, in half of the instructions that the compiler makes of a loop.
inline __m256i FloatsToBFloat16(__m512 values) {
  const __m512i bits = _mm512_castps_si512(values), up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __mmask16 nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
  return _mm512_cvtepi32_epi16(
      _mm512_srli_epi32(_mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000)), 16));
}
#endif

}  // namespace internal

// dst[i] = src[i] as float. Source and destination do not overlap.
inline void ToFloat(const Float16* __restrict src, float* __restrict dst, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  // The maskz form, because gcc 12 warns of an uninitialised value in its own unmasked one.
  for (; i + 16 <= n; i += 16) {
    _mm512_storeu_ps(dst + i,
                     _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i))));
  }
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
  }
#endif
  for (; i < n; ++i) dst[i] = internal::HalfToFloat(src[i].bits);
}

inline void ToFloat(const BFloat16* __restrict src, float* __restrict dst, int64_t n) {
  for (int64_t i = 0; i < n; ++i) dst[i] = std::bit_cast<float>(static_cast<uint32_t>(src[i].bits) << 16);
}

inline void ToFloat(const float* __restrict src, float* __restrict dst, int64_t n) { std::copy(src, src + n, dst); }

// dst[i] = src[i] rounded to dst's type. Source and destination do not overlap.
inline void FromFloat(const float* __restrict src, Float16* __restrict dst, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(dst + i),
        _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#elif defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#elif defined(__aarch64__)
  for (; i + 4 <= n; i += 4) vst1_f16(reinterpret_cast<float16_t*>(dst + i), vcvt_f16_f32(vld1q_f32(src + i)));
#endif
  for (; i < n; ++i) dst[i].bits = internal::FloatToHalf(src[i]);
}

inline void FromFloat(const float* __restrict src, BFloat16* __restrict dst, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i), internal::FloatsToBFloat16(_mm512_loadu_ps(src + i)));
#endif
  for (; i < n; ++i) dst[i].bits = internal::FloatToBFloat16(src[i]);
}

// In blocks: rows of a tile are so short that a call of memmove would take most of the time.
inline void FromFloat(const float* __restrict src, float* __restrict dst, int64_t n) {
  constexpr int64_t kBlock = 16;
  int64_t i = 0;
  for (; i + kBlock <= n; i += kBlock) std::memcpy(dst + i, src + i, kBlock * sizeof(float));
  std::copy(src + i, src + n, dst + i);
}

// One element.
inline float ToFloat(Float16 v) { return internal::HalfToFloat(v.bits); }
inline float ToFloat(BFloat16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }
inline float ToFloat(float v) { return v; }
template <class T>
T FromFloat(float v) {
  if constexpr (std::is_same_v<T, float>) {
    return v;
  } else {
    T out;
    out.bits = std::is_same_v<T, Float16> ? internal::FloatToHalf(v) : internal::FloatToBFloat16(v);
    return out;
  }
}

}  // namespace npu

// The float vector of this instruction-set level, as the compiler's generic vectors: one source compiles to zmm, ymm
// and xmm code. Loads and stores convert from and to the types that tensors are stored in.
#pragma once

#include <cstdint>
#include <cstring>

#include "ep/kernels/convert.h"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace npu::simd {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

// Helpers are always inlined, so that a copy compiled for a wider target is not shared with other code.
#define NPU_SIMD_INLINE [[gnu::always_inline]] inline
#define NPU_SIMD_INLINE_LAMBDA __attribute__((always_inline))

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));

NPU_SIMD_INLINE Vec Load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
NPU_SIMD_INLINE IntVec Load(const int32_t* p) {
  IntVec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
NPU_SIMD_INLINE void Store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
// Bit by bit, also where x is a pair of 16-bit floats: compilers leave the subtraction out, which changes no number,
// where an addition would make 0 of -0.
NPU_SIMD_INLINE Vec Broadcast(float x) { return x - Vec{}; }
NPU_SIMD_INLINE IntVec Broadcast(int32_t x) { return IntVec{} + x; }

// Halves are added to each other until one lane is left.
NPU_SIMD_INLINE float SumOfLanes(Vec v) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
  const __m256 eight = _mm512_castps512_ps256(v) + upper;
#else
  const __m256 eight = v;
#endif
  const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  const __m128 two = four + _mm_movehl_ps(four, four);
  return two[0] + two[1];
#else
  float lanes[kLanes];
  Store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
#endif
}

// kLanes elements as floats.
NPU_SIMD_INLINE Vec LoadFloats(const float* p) { return Load(p); }
NPU_SIMD_INLINE Vec LoadFloats(const BFloat16* p) {
#if defined(__AVX512F__)
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (Vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
#else
  typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
  typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
  Halves h;
  std::memcpy(&h, p, sizeof h);
  return (Vec)(__builtin_convertvector(h, Words) << 16);
#endif
}
NPU_SIMD_INLINE Vec LoadFloats(const Float16* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__) && defined(__F16C__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vld1_f16(reinterpret_cast<const float16_t*>(p)));
#else
  alignas(kLanes * 4) float f[kLanes];
  ToFloat(p, f, kLanes);
  return Load(f);
#endif
}

// The compiler's own conversion of vectors of bytes takes them apart one by one.
NPU_SIMD_INLINE Vec LoadFloats(const int8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = static_cast<float>(p[i]);
  return v;
#endif
}

// The lanes rounded as FromFloat rounds to T, and still floats.
template <class T>
NPU_SIMD_INLINE Vec Rounded(Vec v);
template <>
NPU_SIMD_INLINE Vec Rounded<float>(Vec v) {
  return v;
}
template <>
NPU_SIMD_INLINE Vec Rounded<BFloat16>(Vec v) {
#if defined(__AVX512F__)
  const __m512i bits = (__m512i)v, up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i finite = _mm512_mask_add_epi32(up, odd, up, _mm512_set1_epi32(1));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_or_epi32(finite, nan, bits, _mm512_set1_epi32(0x400000));
  return (Vec)_mm512_and_si512(rounded, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
#else
  typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
  const Words bits = (Words)v;
  const Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (Vec)((v == v ? rounded : bits | 0x400000u) & 0xffff0000u);
#endif
}
template <>
NPU_SIMD_INLINE Vec Rounded<Float16>(Vec v) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__) && defined(__F16C__)
  return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__aarch64__)
  return vcvt_f32_f16(vcvt_f16_f32(v));
#else
  alignas(kLanes * 4) float f[kLanes];
  Store(f, v);
  for (float& lane : f) lane = ToFloat(FromFloat<Float16>(lane));
  return Load(f);
#endif
}

// Stores values that T has: the results of Rounded.
NPU_SIMD_INLINE void StoreRounded(Vec v, float* p) { Store(p, v); }
NPU_SIMD_INLINE void StoreRounded(Vec v, BFloat16* p) {
#if defined(__AVX512F__)
  const __m512i upper = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 29, 27, 25, 23, 21, 19, 17,
                                         15, 13, 11, 9, 7, 5, 3, 1);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, (__m512i)v)));
#else
  typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
  typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
  const Halves h = __builtin_convertvector((Words)v >> 16, Halves);
  std::memcpy(p, &h, sizeof h);
#endif
}
NPU_SIMD_INLINE void StoreRounded(Vec v, Float16* p) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__) && defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__aarch64__)
  vst1_f16(reinterpret_cast<float16_t*>(p), vcvt_f16_f32(v));
#else
  alignas(kLanes * 4) float f[kLanes];
  Store(f, v);
  FromFloat(f, p, kLanes);
#endif
}

}  // namespace npu::simd

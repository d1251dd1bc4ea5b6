// Exponentials, maxima and sums of vectors of floats, for scores and products of attention. Intrinsics are used
// only where the generic form costs an instruction in the inner loops.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "ep/kernels/float_vector.h"
#include "ep/kernels/transposed_block.h"

namespace npu::attention {

using simd::Broadcast;
using simd::IntVec;
using simd::kLanes;
using simd::LaneSequence;
using simd::Load;
using simd::LoadFloats;
using simd::Store;
using simd::Transpose;
using simd::Vec;

#if defined(__AVX512F__) || defined(__aarch64__)
inline constexpr int kTile = 12;  // 12 x 2 accumulators and their operands fill 32 registers
#else
inline constexpr int kTile = 4;
#endif

inline constexpr float kNegativeInfinity = -std::numeric_limits<float>::infinity();

// A NaN in `a` may be lost; a NaN in `b` is returned.
NPU_SIMD_INLINE Vec Max(Vec a, Vec b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__aarch64__)
  return vmaxq_f32(a, b);
#else
  return a > b ? a : b;
#endif
}

// 2^x for x <= 0, within 2 ulp down to 2^-126; 0 for x <= -200, so that 2^-inf is exactly 0. NaN stays NaN.
NPU_SIMD_INLINE Vec Exp2(Vec x) {
  x = Max(Broadcast(-200.0f), x);
#if defined(__AVX512F__)
  const Vec whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const Vec shifted = x + kRound;
  const Vec whole = shifted - kRound;
#endif
  const Vec f = x - whole;
  Vec p = f * 0x1.5bba12p-10f + 0x1.3cea88p-7f;  // minimax on [-1/2, 1/2]: relative error 1.1e-7, exact at 0
  p = p * f + 0x1.c6b752p-5f;
  p = p * f + 0x1.ebf9bcp-3f;
  p = p * f + 0x1.62e42ap-1f;
  p = p * f + 1.0f;
#if defined(__AVX512F__)
  return _mm512_scalef_ps(p, whole);
#else
  const IntVec exponent = ((IntVec)shifted - 0x4b400000) << 23;
  return x < -126.0f ? Vec{} : (Vec)((IntVec)p + exponent);
#endif
}

#if defined(__AVX512F__)
// 2^x in few instructions, within a relative error of 3e-6; exact at 0, 0 at minus infinity, and NaN stays NaN. Results
// below 2^-126 take hundreds of cycles where denormals are not flushed (FlushedDenormals).
NPU_SIMD_INLINE Vec RoughExp2(Vec x) {
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  const Vec f = _mm512_reduce_ps(x, kDown);    // x - floor(x)
  Vec p = f * 0x1.b7f73p-7f + 0x1.abf868p-5f;  // minimax on [0, 1]: relative error 2.9e-6, exact at 0
  p = p * f + 0x1.ee245p-3f;
  p = p * f + 0x1.62d6c6p-1f;
  p = p * f + 1.0f;
  return _mm512_scalef_ps(p, x);  // p * 2^floor(x)
}

// While in scope, this thread's results below 2^-126 are 0.
class FlushedDenormals {
 public:
  FlushedDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | _MM_FLUSH_ZERO_ON); }
  ~FlushedDenormals() { _mm_setcsr(before_); }
  FlushedDenormals(const FlushedDenormals&) = delete;
  FlushedDenormals& operator=(const FlushedDenormals&) = delete;

 private:
  unsigned before_;
};
#endif

#if defined(__AVX512F__)
// Each lane: 16 bits of `odd` above those of `even`.
NPU_SIMD_INLINE Vec InterleaveHalves(__m256i even, __m256i odd) {
  return (Vec)_mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}
#endif

namespace internal {

template <int... I>
NPU_SIMD_INLINE Vec AddPairs(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I)...) + __builtin_shufflevector(a, b, (2 * I + 1)...);
}

// Lane i becomes lane i + n.
NPU_SIMD_INLINE Vec Rotate(Vec v, int n) {
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i + n;
  return __builtin_shuffle(v, lane);
}

}  // namespace internal

// Lane i of the result is the sum of the lanes of v[i].
NPU_SIMD_INLINE Vec SumLanes(Vec (&v)[kLanes]) {
#pragma GCC unroll 8
  for (int n = kLanes / 2; n > 0; n /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) v[i] = internal::AddPairs(v[2 * i], v[2 * i + 1], LaneSequence{});
  }
  return v[0];
}

NPU_SIMD_INLINE bool AllEqual(Vec v, float x) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(v, _mm512_set1_ps(x), _CMP_EQ_OQ) == 0xffff;
#else
  for (int i = 0; i < kLanes; ++i) {
    if (v[i] != x) return false;
  }
  return true;
#endif
}

// A NaN among the lanes may be lost.
NPU_SIMD_INLINE float MaxLane(Vec v) {
#pragma GCC unroll 8
  for (int n = kLanes / 2; n > 0; n /= 2) v = Max(v, internal::Rotate(v, n));
  return v[0];
}
NPU_SIMD_INLINE float SumLane(Vec v) {
#pragma GCC unroll 8
  for (int n = kLanes / 2; n > 0; n /= 2) v += internal::Rotate(v, n);
  return v[0];
}

}  // namespace npu::attention

// Transposes of blocks that have as many rows and columns as a vector has lanes, and what they read and write at the
// end of a row.
#pragma once

#include <cstdint>
#include <utility>

#include "ep/kernels/float_vector.h"

namespace npu::simd {

namespace internal {

template <int... I>
NPU_SIMD_INLINE Vec InterleaveLow(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I / 2 + (I % 2) * kLanes)...);
}
template <int... I>
NPU_SIMD_INLINE Vec InterleaveHigh(Vec a, Vec b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (kLanes / 2 + I / 2 + (I % 2) * kLanes)...);
}

}  // namespace internal

using LaneSequence = std::make_integer_sequence<int, kLanes>;

// Transposes kLanes x kLanes values of 32 bits.
NPU_SIMD_INLINE void Transpose(Vec (&rows)[kLanes]) {
  // Interleaving row i with row i + kLanes / 2 rotates the bits of (row, lane) by one; log2(kLanes) rotations swap row
  // and lane.
#pragma GCC unroll 8
  for (int step = kLanes; step > 1; step /= 2) {
    Vec next[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = internal::InterleaveLow(rows[i], rows[i + kLanes / 2], LaneSequence{});
      next[2 * i + 1] = internal::InterleaveHigh(rows[i], rows[i + kLanes / 2], LaneSequence{});
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
}

// The first `count` elements as floats, of at most kLanes, and zeros; reads no others.
template <class T>
NPU_SIMD_INLINE Vec LoadFirst(const T* p, int64_t count) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
#endif
  T elements[kLanes] = {};
  std::memcpy(elements, p, static_cast<size_t>(count) * sizeof(T));
  return LoadFloats(elements);
}

// Rounds to T and stores the first `count` lanes, of at most kLanes.
template <class T>
NPU_SIMD_INLINE void StoreFirst(Vec v, T* p, int64_t count) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float>) return _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), v);
#endif
  T elements[kLanes];
  StoreRounded(Rounded<T>(v), elements);
  std::memcpy(p, elements, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace npu::simd

// Transposes of matrices of floats, in blocks of as many rows and columns as a vector has lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
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

// Rows that are far apart are not foreseen by the processor: those of the second block behind the one that is read.
inline constexpr int64_t kRowsAhead = 2 * kLanes;

// A block of at most kLanes rows and columns, as many rows of which as it has columns get `stored` elements, at most
// kLanes: zeros beyond its rows.
template <class From, class To>
void TransposeBlock(const From* from, int64_t from_pitch, int64_t rows, int64_t columns, To* to, int64_t to_pitch,
                    int64_t stored) {
  Vec block[kLanes];
  if (rows == kLanes && columns == kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      block[i] = LoadFloats(from + i * from_pitch);
      __builtin_prefetch(from + (i + kRowsAhead) * from_pitch);
    }
  } else {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) block[i] = i < rows ? LoadFirst(from + i * from_pitch, columns) : Vec{};
  }
  Transpose(block);
  if (columns == kLanes && stored == kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) StoreRounded(Rounded<To>(block[i]), to + i * to_pitch);
  } else {
    for (int64_t i = 0; i < columns; ++i) StoreFirst(block[i], to + i * to_pitch, stored);
  }
}

// `rows` rows of `columns` elements to `columns` rows of `stored` elements, zeros beyond as many as there are rows.
// Rows are `from_pitch` and `to_pitch` apart.
template <class From, class To>
void TransposeMatrix(const From* from, int64_t from_pitch, int64_t rows, int64_t columns, To* to, int64_t to_pitch,
                     int64_t stored) {
  constexpr int64_t kBlock = kLanes;
  for (int64_t r = 0; r < stored; r += kBlock) {
    const int64_t some = std::clamp<int64_t>(rows - r, 0, kBlock), wide = std::min(kBlock, stored - r);
    for (int64_t c = 0; c < columns; c += kBlock)
      TransposeBlock(from + r * from_pitch + c, from_pitch, some, std::min(kBlock, columns - c), to + c * to_pitch + r,
                     to_pitch, wide);
  }
}

}  // namespace npu::simd

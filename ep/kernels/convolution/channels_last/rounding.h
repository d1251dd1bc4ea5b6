// Rounds rows of floats to bfloat16, on machines that multiply it: only there are values stored so.
#pragma once

#include <cstdint>

#include "ep/kernels/convert.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace npu::channels_last {

#if defined(__AVX512F__)

// The instruction is not in the level that this is compiled for. The last vector of a row overlaps the one before it:
// a store with a mask takes longer.
__attribute__((target("avx512bf16"), noinline)) inline void RoundRows(const float* from, int64_t pitch, int64_t rows,
                                                                      int64_t columns, BFloat16* to, int64_t to_pitch) {
  constexpr int64_t kLanes = 16, kHalf = kLanes / 2;
  if (columns < kHalf) {
    for (int64_t r = 0; r < rows; ++r) FromFloat(from + r * pitch, to + r * to_pitch, columns);
    return;
  }
  const int64_t whole = columns / (2 * kLanes) * (2 * kLanes);
  for (int64_t r = 0; r < rows; ++r, from += pitch, to += to_pitch) {
    for (int64_t c = 0; c < whole; c += 2 * kLanes)
      _mm512_storeu_si512(to + c,
                          (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + c + kLanes), _mm512_loadu_ps(from + c)));
    for (int64_t c = whole; c < columns; c += kLanes) {
      if (columns < kLanes) {
        for (const int64_t at : {int64_t{0}, columns - kHalf})
          _mm_storeu_si128(reinterpret_cast<__m128i*>(to + at),
                           (__m128i)_mm256_cvtneps_pbh(_mm256_loadu_ps(from + at)));
      } else {
        const int64_t at = c < columns - kLanes ? c : columns - kLanes;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at),
                            (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from + at)));
      }
    }
  }
}

#else

inline void RoundRows(const float* from, int64_t pitch, int64_t rows, int64_t columns, BFloat16* to, int64_t to_pitch) {
  for (int64_t r = 0; r < rows; ++r) FromFloat(from + r * pitch, to + r * to_pitch, columns);
}

#endif

}  // namespace npu::channels_last

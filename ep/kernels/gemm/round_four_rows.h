// A group of four rows that lie beside each other in a sliver as integers of int8, with the same bits as round_group.h:
// the rows share their reductions and divisions, and three packs bring sixteen values of each into the order of a
// sliver.
#pragma once

#if defined(__AVX512F__)

#include <immintrin.h>

#include <cstdint>

#include "ep/kernels/float_vector.h"

namespace npu::gemm {

// The maximum of each vector's lanes.
inline __m128i MaximaOfLanes(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_max_epu32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_max_epu32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i quarters = _mm512_max_epu32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i halves = _mm256_max_epu32(_mm512_castsi512_si256(quarters), _mm512_extracti64x4_epi64(quarters, 1));
  return _mm_max_epu32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

// Rows of `count` values, a multiple of 16, `row_stride` apart. Four bytes of the first row lie at `out`, those of the
// others behind them, the next four of each `step` bytes further; `shift` is added to the bytes only. False, and
// nothing is stored, where a row's largest magnitude is infinite, NaN, or so small that its reciprocal is infinite.
template <class T, class Count>
inline bool RoundFourRows(const T* x, int64_t row_stride, Count count, int shift, int8_t* out, int64_t step,
                          float* scales, int32_t* sums) {
  __m512i most[4] = {};
  for (int64_t i = 0; i < count; i += 16) {
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const __m512i bits = (__m512i)simd::LoadFloats(x + r * row_stride + i);
      most[r] = _mm512_max_epu32(most[r], _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
  }
  const __m128i magnitude_bits = MaximaOfLanes(most[0], most[1], most[2], most[3]);
  const __m128i least = _mm_castps_si128(_mm_set1_ps(4e-37f)), infinite = _mm_set1_epi32(0x7f800000);
  const __mmask8 nonzero = _mm_test_epi32_mask(magnitude_bits, magnitude_bits);
  const __mmask8 plain = _mm_cmplt_epu32_mask(_mm_sub_epi32(magnitude_bits, least), _mm_sub_epi32(infinite, least));
  if ((nonzero & ~plain & 15) != 0) return false;
  const __m128 magnitude = _mm_castsi128_ps(magnitude_bits), most_rounded = _mm_set1_ps(127.0f);
  const __m512 factors = _mm512_broadcast_f32x4(_mm_maskz_div_ps(nonzero, most_rounded, magnitude));
  const __m512 factor[4] = {_mm512_permute_ps(factors, 0x00), _mm512_permute_ps(factors, 0x55),
                            _mm512_permute_ps(factors, 0xaa), _mm512_permute_ps(factors, 0xff)};
  __m512i sum = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 16) {
    __m512i whole[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r)
      whole[r] = _mm512_cvtps_epi32((__m512)simd::LoadFloats(x + r * row_stride + i) * factor[r]);
    const __m512i bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(whole[0], whole[1]), _mm512_packs_epi32(whole[2], whole[3]));
    const __m512i of_pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(of_pairs, _mm512_set1_epi16(1)));
    const __m512i shifted = _mm512_add_epi8(bytes, _mm512_set1_epi8(static_cast<char>(shift)));
    int8_t* to = out + i / 4 * step;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_castsi512_si128(shifted));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + step), _mm512_extracti32x4_epi32(shifted, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * step), _mm512_extracti32x4_epi32(shifted, 2));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * step), _mm512_extracti32x4_epi32(shifted, 3));
  }
  const __m256i halves = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                   _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
  _mm_storeu_ps(scales, _mm_div_ps(magnitude, most_rounded));
  return true;
}

}  // namespace npu::gemm

#endif

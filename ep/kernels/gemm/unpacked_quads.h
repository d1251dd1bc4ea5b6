// Quads, four rows of K of a panel, as bytes [column][4] for dot products of four integers, with columns in the order
// of quad_columns.h: results are put in order once, after all groups.
#pragma once

#include "ep/kernels/gemm/quad_columns.h"
#include "ep/kernels/gemm/stored_row.h"

#if defined(__AVX512F__)

namespace npu::gemm {

inline constexpr int64_t kUnpackedQuadBytes = kPanelColumns * 4;

// visit(the two vectors of each quad).
template <int bits, class Visit>
inline void UnpackQuads(const uint8_t* stored, int64_t quads, int8_t* out, const Visit& visit) {
  for (int64_t q = 0; q < quads; ++q, stored += kQuadBytes<bits>, out += kUnpackedQuadBytes) {
    __m512i low, high;  // two rows of K each
    if constexpr (bits == 4) {
      const __m512i half = _mm512_set1_epi8(15), shift = _mm512_set1_epi8(8);
      const __m512i bytes = _mm512_loadu_si512(stored);
      low = _mm512_sub_epi8(_mm512_and_si512(bytes, half), shift);
      high = _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(bytes, 4), half), shift);
    } else {
      low = _mm512_loadu_si512(stored);
      high = _mm512_loadu_si512(stored + kStoredElements);
      __builtin_prefetch(stored + kStoredPrefetchBytes + 64);
    }
    __builtin_prefetch(stored + kStoredPrefetchBytes);
    const __m512i first = _mm512_unpacklo_epi16(low, high), second = _mm512_unpackhi_epi16(low, high);
    _mm512_store_si512(out, first);
    _mm512_store_si512(out + 64, second);
    visit(first, second);
  }
}

// 32 columns in the order of unpacked quads.
struct Columns {
  __m512 first, second;

  static Columns Unpacked(const float* in_order) {
    const __m512 low = _mm512_loadu_ps(in_order), high = _mm512_loadu_ps(in_order + 16);
    const __m512i even = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512i odd = _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
  }
  static void PutInOrder(float* row) {
    const __m512i first = _mm512_load_si512(row), second = _mm512_load_si512(row + 16);
    _mm512_store_si512(row, FirstColumns(first, second));
    _mm512_store_si512(row + 16, LastColumns(first, second));
  }
};

}  // namespace npu::gemm

#endif

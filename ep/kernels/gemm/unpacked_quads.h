// Quads, four rows of K of a panel, as bytes [column][4] for dot products of four integers, with columns in the order
// of quad_columns.h: results are put in order once, after all groups.
#pragma once

#include "ep/kernels/gemm/quad_columns.h"
#include "ep/kernels/gemm/stored_row.h"

#if defined(__AVX512F__)

namespace npu::gemm {

inline constexpr int64_t kUnpackedQuadBytes = kPanelColumns * 4;

// What is added to the integers of each column as they are unpacked; 4-bit integers are stored as unsigned ones.
struct AddedBytes {
  __m512i first, second;

  static AddedBytes None() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
  // One for each column of 32, in the order of unpacked quads.
  static AddedBytes Of(__m512i first, __m512i second) {
    const __m512i four_times = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    return {_mm512_shuffle_epi8(first, four_times), _mm512_shuffle_epi8(second, four_times)};
  }
};

// visit(the two vectors of each quad). Integers of 4 bits are unpacked with so many bits behind the point, and `added`.
template <int bits, int kFraction = 0, class Visit>
inline void UnpackQuads(const uint8_t* stored, int64_t quads, int8_t* out, const AddedBytes& added,
                        const Visit& visit) {
  const __m512i zero = _mm512_set1_epi8(8 << kFraction);
  const __m512i first_added = _mm512_sub_epi8(added.first, zero), second_added = _mm512_sub_epi8(added.second, zero);
  for (int64_t q = 0; q < quads; ++q, stored += kQuadBytes<bits>, out += kUnpackedQuadBytes) {
    __m512i low, high;  // two rows of K each
    if constexpr (bits == 4) {
      const __m512i half = _mm512_set1_epi8(15 << kFraction), bytes = _mm512_loadu_si512(stored);
      low = _mm512_and_si512(_mm512_slli_epi16(bytes, kFraction), half);
      high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4 - kFraction), half);
    } else {
      low = _mm512_loadu_si512(stored);
      high = _mm512_loadu_si512(stored + kStoredElements);
      __builtin_prefetch(stored + kStoredPrefetchBytes + 64);
    }
    __builtin_prefetch(stored + kStoredPrefetchBytes);
    __m512i first = _mm512_unpacklo_epi16(low, high), second = _mm512_unpackhi_epi16(low, high);
    if constexpr (bits == 4) {
      first = _mm512_add_epi8(first, first_added);
      second = _mm512_add_epi8(second, second_added);
    }
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

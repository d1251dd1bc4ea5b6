// What one instruction multiplies of a panel of stored integers with AVX2, and the order of its columns.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/stored_row.h"

#if defined(__AVX2__)

namespace npu::gemm::avx2 {

inline constexpr int64_t kColumns = 16;  // of a panel, which are multiplied at a time

inline __m256i Load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void Store(void* to, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(to), v); }
inline __m256i Broadcast(const void* four_bytes) {
  int32_t word;
  __builtin_memcpy(&word, four_bytes, sizeof(word));
  return _mm256_set1_epi32(word);
}

// Rows of K of kColumns columns that one product takes, with as many elements of each row of A in four bytes.
template <int bits>
struct Step;

// Four rows: unsigned bytes, those of a column side by side, and signed bytes of A.
template <>
struct Step<4> {
  static constexpr int64_t kRows = 4;
  __m256i first, last;

  explicit Step(const uint8_t* stored) {
    __builtin_prefetch(stored + kStoredPrefetchBytes);
    const __m256i half = _mm256_set1_epi8(15), bytes = Load(stored);
    const __m256i low = _mm256_and_si256(bytes, half);  // two rows of K each
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), half);
    first = _mm256_unpacklo_epi16(low, high);
    last = _mm256_unpackhi_epi16(low, high);
  }
  // Vector by vector: as a whole, the compiler copies it in halves, which a load of a vector waits for.
  explicit Step(const __m256i* unpacked) : first(unpacked[0]), last(unpacked[1]) {}
};

// Two rows: words, those of a column side by side, and words of A.
template <>
struct Step<8> {
  static constexpr int64_t kRows = 2;
  __m256i first, last;

  explicit Step(const uint8_t* stored) {
    __builtin_prefetch(stored + kStoredPrefetchBytes);
    first = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stored)));
    last = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(stored + kColumns)));
  }
  explicit Step(const __m256i* unpacked) : first(unpacked[0]), last(unpacked[1]) {}
};

template <int bits>
inline constexpr int64_t kStepsOfQuad = 4 / Step<bits>::kRows;
template <int bits>
inline constexpr int64_t kStepBytes = kQuadBytes<bits> / kStepsOfQuad<bits>;
// Of one row of A.
template <int bits>
inline constexpr int64_t kQuadBytesOfA = 4 * kStepsOfQuad<bits>;

// Steps of consecutive quads: of a panel, unpacked where they are multiplied, or of memory.
template <int bits>
struct PanelSteps {
  const uint8_t* stored;

  Step<bits> operator[](int64_t i) const { return Step<bits>(stored + i * kStepBytes<bits>); }
  PanelSteps From(int64_t quads) const { return {stored + quads * kQuadBytes<bits>}; }
};
template <int bits>
struct UnpackedSteps {
  const __m256i* unpacked;

  Step<bits> operator[](int64_t i) const { return Step<bits>(unpacked + 2 * i); }
  UnpackedSteps From(int64_t quads) const { return {unpacked + quads * kStepsOfQuad<bits> * 2}; }
};

// Columns 0 to 7 and 8 to 15 of two vectors of 32-bit values in the order of 4-bit integers' products, and back: that
// of a product has columns 0 to 3 and 8 to 11 in the first vector.
template <int bits>
inline void SwapOrder(__m256i (&columns)[2]) {
  if constexpr (bits == 4) {
    const __m256i first = columns[0], last = columns[1];
    columns[0] = _mm256_permute2x128_si256(first, last, 0x20);
    columns[1] = _mm256_permute2x128_si256(first, last, 0x31);
  }
}

// kColumns values in the order of products.
template <int bits>
struct ColumnValues {
  __m256 half[2];

  ColumnValues() = default;
  explicit ColumnValues(const float* in_order) {
    __m256i columns[2] = {Load(in_order), Load(in_order + 8)};
    SwapOrder<bits>(columns);
    half[0] = _mm256_castsi256_ps(columns[0]), half[1] = _mm256_castsi256_ps(columns[1]);
  }
  void StoreTo(float* to) const { _mm256_storeu_ps(to, half[0]), _mm256_storeu_ps(to + 8, half[1]); }
};

}  // namespace npu::gemm::avx2

#endif

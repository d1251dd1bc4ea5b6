#include "ep/kernels/gemm/split_float16.h"

#include <algorithm>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace npu::gemm {

#if defined(__AVX512F__)

namespace {

#define NPU_SPLIT_TARGET __attribute__((target("avx512bf16")))
#define NPU_SPLIT_INLINE inline __attribute__((target("avx512bf16"), always_inline))

constexpr int64_t kStepRows = 32;  // of K
constexpr int64_t kPairsOfStep = kStepRows / 2;

// 16 elements in three forms, as bfloat16.
struct Parts {
  __m256i high, finite, low;  // `finite`: the high part, or 0 for infinities and NaN
};

NPU_SPLIT_INLINE Parts Split(__m256i halves) {
  const __m512 value = _mm512_maskz_cvtph_ps(0xffff, halves);
  const __m256i high = (__m256i)_mm512_cvtneps_pbh(value);
  const __m512 rounded = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  const __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(value), _mm512_set1_ps(65504.0f), _CMP_LE_OQ);
  return {high, _mm256_maskz_mov_epi16(finite, high),
          (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_sub_ps(finite, value, rounded))};
}

NPU_SPLIT_INLINE __m512i Interleaved(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

NPU_SPLIT_INLINE __m512i Joined(__m256i first, __m256i second) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}

NPU_SPLIT_INLINE __m256i LoadHalves(const uint16_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

}  // namespace

NPU_SPLIT_TARGET void SplitPanel(const void* panel, int64_t depth, void* out) {
  constexpr int64_t kRow = kPanelColumns, kBlock = kPairsOfStep * 2 * kRow;  // elements
  constexpr int64_t kAhead = 4096;                                           // bytes
  const auto* from = static_cast<const uint16_t*>(panel);
  auto* to = static_cast<uint16_t*>(out);
  for (int64_t k = 0; k < depth; k += kStepRows, to += kSplitParts * kBlock) {
    for (int64_t pair = 0; pair < kPairsOfStep; ++pair) {
      for (int64_t j = 0; j < kRow; j += kLanes) {
        const int64_t row = k + 2 * pair;
        const uint16_t* at = from + row * kRow + j;
        const Parts even = Split(row < depth ? LoadHalves(at) : _mm256_setzero_si256());
        const Parts odd = Split(row + 1 < depth ? LoadHalves(at + kRow) : _mm256_setzero_si256());
        uint16_t* pairs = to + (pair * kRow + j) * 2;
        _mm512_store_si512(pairs, Interleaved(even.high, odd.high));
        _mm512_store_si512(pairs + kBlock, Interleaved(even.low, odd.low));
        _mm512_store_si512(pairs + 2 * kBlock, Interleaved(even.finite, odd.finite));
      }
      __builtin_prefetch(reinterpret_cast<const char*>(from + (k + 2 * pair) * kRow) + kAhead);
      __builtin_prefetch(reinterpret_cast<const char*>(from + (k + 2 * pair + 1) * kRow) + kAhead);
    }
  }
}

NPU_SPLIT_TARGET void PackSplitSliver(const Matrix& a, int64_t m0, int64_t rows, int64_t stored_rows, int64_t k0,
                                      int64_t depth, void* out) {
  const auto* source = static_cast<const uint16_t*>(a.data) + m0 * a.row_stride + k0 * a.column_stride;
  const int64_t part = stored_rows * kStepRows;  // elements
  auto* to = static_cast<uint16_t*>(out);
  for (int64_t k = 0; k < depth; k += kStepRows, to += kSplitParts * part) {
    const int64_t count = std::min(kStepRows, depth - k);
    for (int64_t r = 0; r < rows; ++r) {
      const uint16_t* row = source + r * a.row_stride + k * a.column_stride;
      uint16_t elements[kStepRows] = {};
      if (a.column_stride == 1) {
        std::memcpy(elements, row, static_cast<size_t>(count) * sizeof(uint16_t));
      } else {
        for (int64_t i = 0; i < count; ++i) elements[i] = row[i * a.column_stride];
      }
      const Parts first = Split(LoadHalves(elements)), second = Split(LoadHalves(elements + kLanes));
      uint16_t* at = to + r * kStepRows;
      _mm512_store_si512(at, Joined(first.high, second.high));
      _mm512_store_si512(at + part, Joined(first.finite, second.finite));
      _mm512_store_si512(at + 2 * part, Joined(first.low, second.low));
    }
    for (int i = 0; i < kSplitParts && rows < stored_rows; ++i)
      std::fill(to + i * part + rows * kStepRows, to + (i + 1) * part, uint16_t{0});
  }
}

#else

void SplitPanel(const void*, int64_t, void*) {}
void PackSplitSliver(const Matrix&, int64_t, int64_t, int64_t, int64_t, int64_t, void*) {}

#endif

}  // namespace npu::gemm

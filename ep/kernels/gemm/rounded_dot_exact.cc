// Rows of A as int8 times a panel of stored integers. Operations on integers' sums are rounded one by one, as in the
// reference of an operator; a contracted multiply-add is only used where it is written.
#include "ep/kernels/gemm/dot_products.h"
#include "ep/kernels/gemm/quad_columns.h"
#include "ep/kernels/gemm/rounded_dot.h"
#include "ep/kernels/gemm/stored_row.h"
#include "ep/runtime/isa.h"

namespace npu::gemm {

namespace {

// Added to the stored integers to make them unsigned, as VPDPBUSD takes them; 4-bit integers are stored so.
template <int bits>
constexpr int32_t kShift = bits == 4 ? 8 : 128;

template <int bits>
void PlainDot(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile) {
  const int64_t results = a.results();
  for (int64_t i = 0; i < results * kPanelColumns; ++i) tile[i] = scales.first ? scales.first[i % kPanelColumns] : 0.0f;
  for (int64_t g = 0; g < a.groups; ++g) {
    int32_t sums[kVectorSlivers.rows][kPanelColumns] = {};
    const int64_t end = std::min(a.depth, (g + 1) * a.group);
    for (int64_t k = g * a.group; k < end; k += 4) {
      int32_t elements[4][kPanelColumns];
      for (int row = 0; row < 4; ++row)
        for (int64_t j = 0; j < kPanelColumns; ++j) {
          const int64_t at = 2 * j + row % 2, stored_row = k / 2 + row / 2;
          if constexpr (bits == 8) {
            elements[row][j] = static_cast<int8_t>(stored[stored_row * kStoredElements + at]);
          } else {
            elements[row][j] = (stored[stored_row / 2 * kStoredElements + at] >> (stored_row % 2 * 4) & 15) - 8;
          }
        }
      for (int64_t r = 0; r < a.rows; ++r) {
        const int8_t* x = a.values + k * a.rows + 4 * r;
#pragma omp simd
        for (int64_t j = 0; j < kPanelColumns; ++j)
          sums[r][j] += x[0] * elements[0][j] + x[1] * elements[1][j] + x[2] * elements[2][j] + x[3] * elements[3][j];
      }
    }
    for (int64_t r = 0; r < results; ++r) {
      const int64_t at = g * a.stride + r;
      const float* scale = scales.scale + g * scales.stride;
      const int32_t of_ones = a.zero_point != 0 ? a.zero_point * a.sums[g * a.stride + results] : 0;
      const float row_sum = static_cast<float>(a.sums[at] - of_ones);
      for (int64_t j = 0; j < kPanelColumns; ++j) {
        const int32_t of_zero_point = a.zero_point != 0 ? a.zero_point * sums[results][j] : 0;
        const float sum = static_cast<float>(sums[r][j] - of_zero_point);
        const float offset = scales.offset ? scales.offset[g * scales.stride + j] : 0.0f;
        tile[r * kPanelColumns + j] += (sum + offset * row_sum) * (scale[j] * a.scales[at]);
      }
    }
  }
}

#if defined(__AVX512F__)

// sums[kRows][2] = the products of a group with the unsigned integers, in the order of the columns of quads. A function
// of its own: inside the loop over groups the compiler does not keep so many sums in registers.
template <int bits, int kRows>
__attribute__((noinline)) void SumQuads(const int8_t* x, const uint8_t* stored, int64_t quads, __m512i (*sums)[2]) {
  __m512i sum[kRows][2];
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_si512();
  for (int64_t q = 0; q < quads; ++q, stored += kQuadBytes<bits>, x += kRows * 4) {
    __m512i low, high;  // two rows of K each
    if constexpr (bits == 4) {
      const __m512i half = _mm512_set1_epi8(15);
      const __m512i bytes = _mm512_loadu_si512(stored);
      low = _mm512_and_si512(bytes, half);
      high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), half);
    } else {
      const __m512i flip = _mm512_set1_epi8(-128);
      low = _mm512_xor_si512(_mm512_loadu_si512(stored), flip);
      high = _mm512_xor_si512(_mm512_loadu_si512(stored + kStoredElements), flip);
      __builtin_prefetch(stored + kStoredPrefetchBytes + 64);
    }
    __builtin_prefetch(stored + kStoredPrefetchBytes);
    const __m512i first = _mm512_unpacklo_epi16(low, high), second = _mm512_unpackhi_epi16(low, high);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      int32_t quad;
      __builtin_memcpy(&quad, x + 4 * r, sizeof(quad));
      const __m512i of_row = _mm512_set1_epi32(quad);
      AddDotOfBytes(sum[r][0], first, of_row);
      AddDotOfBytes(sum[r][1], second, of_row);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    sums[r][0] = sum[r][0];
    sums[r][1] = sum[r][1];
  }
}

// a + b * c, of integers' sums with a rounding of the product.
inline __m512 MultiplyAdd(bool integers, __m512 b, __m512 c, __m512 a) {
  return integers ? _mm512_add_ps(a, _mm512_mul_ps(b, c)) : _mm512_fmadd_ps(b, c, a);
}

template <int bits, int kRows>
void VnniDot(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile) {
  __m512i sums[kRows][2];
  const int results = static_cast<int>(a.results());
  for (int64_t g = 0; g < a.groups; ++g) {
    const int64_t begin = g * a.group / 4, end = (std::min(a.depth, (g + 1) * a.group) + 3) / 4;
    SumQuads<bits, kRows>(a.values + begin * kRows * 4, stored + begin * kQuadBytes<bits>, end - begin, sums);
    __m512i of_zero0 = _mm512_setzero_si512(), of_zero1 = of_zero0;
    if (a.zero_point != 0) {
      const __m512i shifted = _mm512_set1_epi32(kShift<bits> * a.sums[g * a.stride + kRows - 1]);
      const __m512i zero_point = _mm512_set1_epi32(a.zero_point);
      const __m512i first = sums[kRows - 1][0], last = sums[kRows - 1][1];
      of_zero0 = _mm512_mullo_epi32(zero_point, _mm512_sub_epi32(FirstColumns(first, last), shifted));
      of_zero1 = _mm512_mullo_epi32(zero_point, _mm512_sub_epi32(LastColumns(first, last), shifted));
    }
    const float* scale = scales.scale + g * scales.stride;
    const __m512 scale0 = _mm512_loadu_ps(scale), scale1 = _mm512_loadu_ps(scale + kLanes);
    for (int r = 0; r < results; ++r) {
      const int64_t at = g * a.stride + r;
      const __m512i shifted = _mm512_set1_epi32(kShift<bits> * a.sums[at]);
      const __m512i whole0 = _mm512_sub_epi32(FirstColumns(sums[r][0], sums[r][1]), shifted);
      const __m512i whole1 = _mm512_sub_epi32(LastColumns(sums[r][0], sums[r][1]), shifted);
      __m512 sum0 = _mm512_cvtepi32_ps(_mm512_sub_epi32(whole0, of_zero0));
      __m512 sum1 = _mm512_cvtepi32_ps(_mm512_sub_epi32(whole1, of_zero1));
      if (scales.offset) {
        const int32_t of_zero = a.zero_point == 0 ? 0 : a.zero_point * a.sums[g * a.stride + kRows - 1];
        const __m512 row_sum = _mm512_set1_ps(static_cast<float>(a.sums[at] - of_zero));
        const float* offset = scales.offset + g * scales.stride;
        sum0 = MultiplyAdd(a.integers, _mm512_loadu_ps(offset), row_sum, sum0);
        sum1 = MultiplyAdd(a.integers, _mm512_loadu_ps(offset + kLanes), row_sum, sum1);
      }
      float* total = tile + r * kPanelColumns;
      const __m512 row_scale = _mm512_set1_ps(a.scales[at]);
      const float* before = g == 0 ? scales.first : total;
      const __m512 before0 = before ? _mm512_loadu_ps(before) : _mm512_setzero_ps();
      const __m512 before1 = before ? _mm512_loadu_ps(before + kLanes) : _mm512_setzero_ps();
      _mm512_store_ps(total, MultiplyAdd(a.integers, sum0, scale0 * row_scale, before0));
      _mm512_store_ps(total + kLanes, MultiplyAdd(a.integers, sum1, scale1 * row_scale, before1));
    }
  }
}

template <int bits>
void VnniDotOfRows(const RoundedRows& a, const uint8_t* stored, const PanelScales& scales, float* tile) {
  static constexpr RoundedDotFunction kFunctions[kVectorSlivers.rows] = {
      &VnniDot<bits, 1>, &VnniDot<bits, 2>,  &VnniDot<bits, 3>,  &VnniDot<bits, 4>,
      &VnniDot<bits, 5>, &VnniDot<bits, 6>,  &VnniDot<bits, 7>,  &VnniDot<bits, 8>,
      &VnniDot<bits, 9>, &VnniDot<bits, 10>, &VnniDot<bits, 11>, &VnniDot<bits, 12>};
  kFunctions[a.rows - 1](a, stored, scales, tile);
}

#endif

}  // namespace

RoundedDotFunction SelectRoundedDot(int bits) {
#if defined(__AVX512F__)
  if (Features().avx512_vnni) return bits == 8 ? &VnniDotOfRows<8> : &VnniDotOfRows<4>;
#endif
  if (const RoundedDotFunction dot = NeonRoundedDot(bits)) return dot;
  return bits == 8 ? &PlainDot<8> : &PlainDot<4>;
}

RoundedBlock SelectRoundedBlock(int bits, int64_t rows, int64_t group, bool integers) {
  if (const RoundedBlockFunction tiles = SelectRoundedTiles(bits, rows, group)) return {tiles, kTileSlivers};
  if (Features().avx512_vnni) return integers ? RoundedBlock() : VnniRoundedBlock(bits, rows, group);
  return Avx2RoundedBlock(bits);
}

}  // namespace npu::gemm

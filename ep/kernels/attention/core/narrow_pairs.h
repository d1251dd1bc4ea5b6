// Products of few rows with bfloat16 keys and values by VDPBF16PS, for narrow.h. Where a key's elements lie along a
// vector, adding up its lanes takes more instructions than the products. So four keys at a time are transposed within
// each 16 bytes, which leaves four sums to add for four keys instead of sixteen for each.
#pragma once

#include "ep/kernels/attention/core/simd.h"
#include "ep/runtime/dtype.h"

#if defined(__AVX512F__)

namespace npu::attention {

// Two neighbouring elements in each lane.
NPU_SIMD_INLINE Vec LoadPairs(const BFloat16* p) { return (Vec)_mm512_loadu_si512(p); }
NPU_SIMD_INLINE Vec BroadcastPair(const BFloat16* p) {
  float pair;
  std::memcpy(&pair, p, sizeof pair);
  return Broadcast(pair);
}
NPU_SIMD_INLINE Vec DotPairs(Vec sum, Vec a, Vec b) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }

// Four vectors for each 32 elements of a row: the pairs 0, 4, 8, 12, each four times, then 1, 5, 9, 13, and so on.
NPU_SIMD_INLINE void SpreadPairs(const BFloat16* row, int64_t size, float* to) {
  for (int64_t d = 0; d < size; d += 2 * kLanes, to += 4 * kLanes) {
    const __m512i pairs = (__m512i)LoadPairs(row + d);
    Store(to, (Vec)_mm512_shuffle_epi32(pairs, _MM_PERM_AAAA));
    Store(to + kLanes, (Vec)_mm512_shuffle_epi32(pairs, _MM_PERM_BBBB));
    Store(to + 2 * kLanes, (Vec)_mm512_shuffle_epi32(pairs, _MM_PERM_CCCC));
    Store(to + 3 * kLanes, (Vec)_mm512_shuffle_epi32(pairs, _MM_PERM_DDDD));
  }
}

// Transposes 4 x 4 pairs in each 16 bytes.
NPU_SIMD_INLINE void TransposePairs(Vec (&v)[4]) {
  const auto a = (__m512i)v[0], b = (__m512i)v[1], c = (__m512i)v[2], d = (__m512i)v[3];
  const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
  const __m512i ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
  v[0] = (Vec)_mm512_unpacklo_epi64(ab, cd);
  v[1] = (Vec)_mm512_unpackhi_epi64(ab, cd);
  v[2] = (Vec)_mm512_unpacklo_epi64(ab_high, cd_high);
  v[3] = (Vec)_mm512_unpackhi_epi64(ab_high, cd_high);
}

// The products of kRows spread rows with eight keys of `size` elements, which 32 divides; key i is `key(i)`. Calls
// `ahead` before each 32 elements of them are read.
template <int kRows, class Key, class Ahead>
NPU_SIMD_INLINE void ScoreEightKeys(const float* rows, int64_t row_stride, int64_t size, const Key& key, float scale,
                                    float* scores, int64_t score_stride, const Ahead& ahead) {
  Vec low[kRows] = {}, high[kRows] = {};
  for (int64_t d = 0; d < size; d += 2 * kLanes, rows += 4 * kLanes) {
    ahead();
    Vec a[4], b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) a[i] = LoadPairs(key(i) + d);
    TransposePairs(a);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) b[i] = LoadPairs(key(4 + i) + d);
    TransposePairs(b);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const Vec q = Load(rows + r * row_stride + i * kLanes);
        low[r] = DotPairs(low[r], a[i], q);
        high[r] = DotPairs(high[r], b[i], q);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const Vec halves = _mm512_shuffle_f32x4(low[r], high[r], 0x44) + _mm512_shuffle_f32x4(low[r], high[r], 0xee);
    const Vec sums = halves + (Vec)_mm512_shuffle_f32x4(halves, halves, 0xb1);
    const Vec both = _mm512_shuffle_f32x4(sums, sums, 0x08);
    _mm256_storeu_ps(scores + r * score_stride, _mm512_castps512_ps256(both * scale));
  }
}

// Rounds weights, `n` rounded up to whole vectors.
NPU_SIMD_INLINE void RoundWeights(const float* weights, int64_t n, BFloat16* to) {
  for (int64_t j = 0; j < n; j += kLanes) {
    const __m256bh rounded = _mm512_cvtneps_pbh(Load(weights + j));
    std::memcpy(to + j, &rounded, sizeof rounded);
  }
}

// Sums of 32 columns as VPUNPCKLWD and VPUNPCKHWD leave them, four columns of each 16 bytes in turn, and in order.
NPU_SIMD_INLINE void OrderColumns(float* sums) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const Vec a = Load(sums), b = Load(sums + kLanes);
  Store(sums, (Vec)_mm512_permutex2var_ps(a, low, b));
  Store(sums + kLanes, (Vec)_mm512_permutex2var_ps(a, _mm512_add_epi32(low, _mm512_set1_epi32(8)), b));
}

// Adds kPairs * 32 columns of `n` values times the rounded weights of kRows rows to sums, whose columns are those of
// OrderColumns. Calls `ahead` before two of them are read.
template <int kRows, int kPairs, class Ahead>
NPU_SIMD_INLINE void AddPairsOfValues(const BFloat16* weights, int64_t weight_stride, const BFloat16* values,
                                      int64_t value_stride, int64_t n, float* sums, int64_t sum_stride,
                                      const Ahead& ahead) {
  Vec sum[kRows][2 * kPairs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPairs; ++v) sum[r][v] = Load(sums + r * sum_stride + v * kLanes);
  }
  const auto add = [&](int64_t j, auto odd) NPU_SIMD_INLINE_LAMBDA {
    ahead();
    Vec x[2 * kPairs];
#pragma GCC unroll 2
    for (int v = 0; v < kPairs; ++v) {
      const int64_t column = v * 2 * kLanes;
      const auto first = (__m512i)LoadPairs(values + j * value_stride + column), second = odd(column);
      x[2 * v] = (Vec)_mm512_unpacklo_epi16(first, second);
      x[2 * v + 1] = (Vec)_mm512_unpackhi_epi16(first, second);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vec w = BroadcastPair(weights + r * weight_stride + j);
#pragma GCC unroll 4
      for (int v = 0; v < 2 * kPairs; ++v) sum[r][v] = DotPairs(sum[r][v], x[v], w);
    }
  };
  int64_t j = 0;
  for (; j + 2 <= n; j += 2) {
    add(j, [&](int64_t column)
               NPU_SIMD_INLINE_LAMBDA { return (__m512i)LoadPairs(values + (j + 1) * value_stride + column); });
  }
  if (j < n) add(j, [](int64_t) NPU_SIMD_INLINE_LAMBDA { return _mm512_setzero_si512(); });
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < 2 * kPairs; ++v) Store(sums + r * sum_stride + v * kLanes, sum[r][v]);
  }
}

}  // namespace npu::attention

#endif

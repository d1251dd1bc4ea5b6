// The block of keys and values that the panels of an item multiply in tile registers: copied from the cache, in the
// order of the products.
#pragma once

#include <algorithm>

#include "ep/kernels/attention/core/panel_buffers.h"

namespace npu::attention {

// columns[d][word] = the values d of two keys, for the kTileKeys keys whose rows of `size` values are given; zeros in
// the columns that follow, up to `padded`.
template <class Element>
NPU_SIMD_INLINE void TransposeValues(const Element* const (&rows)[kTileKeys], int64_t size, int64_t padded,
                                     float* columns, int64_t column_stride) {
  static_assert(kTileKeys == 2 * kLanes && sizeof(Element) == 2);
  for (int64_t d = 0; d < padded; d += kLanes) {
    const auto lanes = static_cast<__mmask16>((1u << std::clamp<int64_t>(size - d, 0, kLanes)) - 1);
    Vec block[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      block[i] = InterleaveHalves(_mm256_maskz_loadu_epi16(lanes, rows[2 * i] + d),
                                  _mm256_maskz_loadu_epi16(lanes, rows[2 * i + 1] + d));
    }
    Transpose(block);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) Store(columns + (d + i) * column_stride, block[i]);
  }
}

// Copies n keys and values from `begin` on, with zeros up to whole chunks.
template <class Math, int kVectors>
void LoadTileBlock(const Problem& p, const Sequence& s, const Item& item, int64_t begin, int64_t n,
                   const PanelBuffers<Math, kVectors>& b) {
  using Element = typename Math::Element;
  CopyKeys(p, s, item.key_head, begin, begin + n, reinterpret_cast<Element*>(b.keys), b.key_stride * Math::kElements);
  const int64_t whole = RoundUp(n, kTileKeys);
  std::fill(b.keys + n * b.key_stride, b.keys + whole * b.key_stride, 0.0f);

  static constexpr Element kZeros[kMaxHeadSize] = {};
  for (int64_t key = 0; key < whole; key += kTileKeys) {
    const Element* rows[kTileKeys];
    std::fill_n(rows, kTileKeys, kZeros);
    ForEachStretch(p, s, Values(p, s), item.key_head, begin + key, begin + std::min(key + kTileKeys, n),
                   [&](const Stretch& at) {
                     for (int64_t i = 0; i < at.count; ++i)
                       rows[at.first - begin - key + i] = at.template row<Element>(i);
                   });
    TransposeValues(rows, p.value_size, b.value_stride, b.columns + key / 2, b.column_stride);
  }
}

}  // namespace npu::attention

// The block of keys and values that the panels of an item multiply with vector instructions: copied from the cache, in
// the order of the products.
#pragma once

#include <algorithm>

#include "ep/kernels/attention/core/panel_buffers.h"

namespace npu::attention {

// Rows of two keys, element by element: the pairs along the axis that the second matmul sums.
template <class Element>
NPU_SIMD_INLINE void InterleaveRows(const Element* even, const Element* odd, int64_t columns, uint16_t* pairs) {
  auto* words = reinterpret_cast<uint32_t*>(pairs);
  for (int64_t d = 0; d < columns; ++d) {
    words[d] = static_cast<uint32_t>(even[d].bits) | static_cast<uint32_t>(odd[d].bits) << 16;
  }
}

template <class Math, int kVectors>
void LoadValuePairs(const Problem& p, const Sequence& s, const Item& item, int64_t begin, int64_t n,
                    const PanelBuffers<Math, kVectors>& b) {
  using Element = typename Math::Element;
  auto* to = reinterpret_cast<uint16_t*>(b.values);
  ForEachStretch(p, s, Values(p, s), item.key_head, begin, begin + n, [&](const Stretch& at) {
    for (int64_t i = 0; i < at.count; ++i) {
      const int64_t j = at.first - begin + i;
      const Element* row = at.row<Element>(i);
      uint16_t* pairs = to + (j / 2) * b.value_stride * 2 + j % 2;
      if (j % 2 == 0 && i + 1 < at.count) {
        InterleaveRows(row, at.row<Element>(i + 1), p.value_size, pairs);
        ++i;
        continue;
      }
      for (int64_t d = 0; d < p.value_size; ++d) pairs[2 * d] = row[d].bits;
    }
  });
  if (n % 2 != 0) {
    uint16_t* pairs = to + (n / 2) * b.value_stride * 2 + 1;
    for (int64_t d = 0; d < p.value_size; ++d) pairs[2 * d] = 0;
  }
}

// Copies n keys and values from `begin` on, with zeros up to whole steps and vectors.
template <class Math, int kVectors>
void LoadPanelBlock(const Problem& p, const Sequence& s, const Item& item, int64_t begin, int64_t n,
                    const PanelBuffers<Math, kVectors>& b) {
  using Buffers = PanelBuffers<Math, kVectors>;
  CopyKeys(p, s, item.key_head, begin, begin + n, reinterpret_cast<typename Math::Element*>(b.keys),
           b.key_stride * Math::kElements);
  std::fill(b.keys + n * b.key_stride, b.keys + RoundUp(n, Buffers::kKeyStep) * b.key_stride, 0.0f);
  if constexpr (Math::kElements == 1) {
    CopyRows(p, s, Values(p, s), item.key_head, begin, begin + n, p.value_size, b.values, b.value_stride);
  } else {
    LoadValuePairs(p, s, item, begin, n, b);
  }
  const int64_t words = (n + Math::kElements - 1) / Math::kElements;
  ClearTails(b.values, words, p.value_size, b.value_stride);
}

}  // namespace npu::attention

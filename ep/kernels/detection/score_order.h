// The order in which suppression takes boxes.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/kernels/sorted_positions.h"

namespace npu::detection {

// Smaller keys for greater scores. No score but NaN has the greatest key.
inline uint32_t DescendingKey(float score) { return score == score ? ~UnsignedKey(score) : ~uint32_t{0}; }

// Into `order`: the positions of the scores, `step` apart, that `counts` accepts, by descending score; equal ones in
// their order, NaN last. Positions must fit int32.
template <class Counts>
void ByDescendingScore(const float* scores, int64_t n, int64_t step, Counts counts, std::vector<int64_t>& order) {
  std::vector<PackedKey> keys;
  keys.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const float score = scores[i * step];
    if (counts(score)) keys.emplace_back(DescendingKey(score), i);
  }
  std::vector<PackedKey> scratch(keys.size());
  SortKeys(keys.data(), static_cast<int64_t>(keys.size()), scratch.data());
  order.clear();
  order.reserve(keys.size());
  for (const PackedKey& key : keys) order.push_back(key.position());
}

}  // namespace npu::detection

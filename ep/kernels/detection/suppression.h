// Greedy non-maximum suppression: of boxes by descending score, those that overlap none chosen before.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ep/kernels/detection/chosen_boxes.h"
#include "ep/kernels/ordered_key.h"
#include "ep/runtime/kernel_api.h"

namespace npu::detection {

inline constexpr int64_t kMostBoxes = std::numeric_limits<int32_t>::max();  // of one list; positions are int32

// Into `order`: the positions of the scores, `step` apart, that `counts` accepts, by descending score; equal ones in
// their order, NaN last.
template <class Counts>
void ByDescendingScore(const float* scores, int64_t n, int64_t step, Counts counts, std::vector<int64_t>& order) {
  order.clear();
  // Key and position in one integer, which sorts several times faster than positions by their scores.
  std::vector<uint64_t> keys;
  for (int64_t i = 0; i < n; ++i) {
    const float score = scores[i * step];
    if (!counts(score)) continue;
    const int64_t key = score == score ? int64_t{kNanKey} - OrderedKey(score) : int64_t{1} << 32;
    keys.push_back(static_cast<uint64_t>(key) << 31 | static_cast<uint64_t>(i));
  }
  std::sort(keys.begin(), keys.end());
  order.reserve(keys.size());
  for (const uint64_t key : keys) order.push_back(static_cast<int64_t>(key & kMostBoxes));
}

// Refuses what is not a threshold of intersection over union.
inline void CheckOverlap(const char* op, double threshold) {
  NPU_CHECK(threshold >= 0 && threshold <= 1, "[", op, "] expected iou_threshold from 0 to 1, got ", threshold);
}

// Refuses more boxes than positions can tell apart.
inline void CheckBoxes(const char* op, int64_t n) {
  NPU_CHECK(n <= kMostBoxes, "[", op, "] expected boxes that int32 counts, got ", n);
}

// Refuses what is not a number of boxes.
inline void CheckCount(const char* op, const char* name, double count) {
  NPU_CHECK(count >= 0 && count <= static_cast<double>(kMostBoxes) && count == std::floor(count), "[", op,
            "] expected ", name, " to be a whole number from 0 to ", kMostBoxes, ", got ", count);
}

}  // namespace npu::detection

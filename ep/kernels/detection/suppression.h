// Greedy non-maximum suppression: of boxes by descending score, those that overlap none chosen before.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ep/kernels/detection/boxes.h"
#include "ep/runtime/kernel_api.h"

namespace npu::detection {

// Boxes that suppress those which they overlap by more than a threshold of intersection over union. A box without area,
// or with NaN, neither suppresses nor is suppressed.
class ChosenBoxes {
 public:
  // `floor`: what a union counts at least.
  explicit ChosenBoxes(float threshold, float floor = 0) : threshold_(threshold), floor_(floor) {}

  size_t size() const { return area_.size(); }

  // Adds the box unless one of those before suppresses it; returns whether it did.
  bool Add(const Box& box) {
    if (Suppresses(box)) return false;
    left_.push_back(box.left);
    top_.push_back(box.top);
    right_.push_back(box.right);
    bottom_.push_back(box.bottom);
    area_.push_back(box.Area());
    return true;
  }

 private:
  static constexpr size_t kBlock = 64;  // boxes that are compared before the answer is looked at

  bool Suppresses(const Box& box) const {
    for (size_t i = 0; i < size(); i += kBlock)
      if (AnyOf(box, i, std::min(size(), i + kBlock))) return true;
    return false;
  }

  // Without branches, so that it vectorises.
  bool AnyOf(const Box& box, size_t begin, size_t end) const {
    const float *left = left_.data(), *top = top_.data(), *right = right_.data(), *bottom = bottom_.data();
    const float *areas = area_.data(), area = box.Area(), threshold = threshold_, floor = floor_;
    int any = 0;
    for (size_t i = begin; i < end; ++i) {
      const float width = std::min(box.right, right[i]) - std::max(box.left, left[i]);
      const float height = std::min(box.bottom, bottom[i]) - std::max(box.top, top[i]);
      const float both = width * height, all = std::max(area + areas[i] - both, floor);
      any |= static_cast<int>(width > 0) & static_cast<int>(height > 0) & static_cast<int>(both / all > threshold);
    }
    return any != 0;
  }

  float threshold_, floor_;
  std::vector<float> left_, top_, right_, bottom_, area_;
};

// Into `order`: the positions of the scores, `step` apart, that `counts` accepts, by descending score; equal ones in
// their order, NaN last.
template <class Counts>
void ByDescendingScore(const float* scores, int64_t n, int64_t step, Counts counts, std::vector<int64_t>& order) {
  order.clear();
  for (int64_t i = 0; i < n; ++i)
    if (counts(scores[i * step])) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [=](int64_t a, int64_t b) {
    const float x = scores[a * step], y = scores[b * step];
    return x > y || (x == x && y != y);
  });
}

// Refuses what is not a threshold of intersection over union.
inline void CheckOverlap(const char* op, double threshold) {
  NPU_CHECK(threshold >= 0 && threshold <= 1, "[", op, "] expected iou_threshold from 0 to 1, got ", threshold);
}

// Refuses what is not a number of boxes.
inline void CheckCount(const char* op, const char* name, double count) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // indices are int32
  NPU_CHECK(count >= 0 && count <= static_cast<double>(kMost) && count == std::floor(count), "[", op, "] expected ",
            name, " to be a whole number from 0 to ", kMost, ", got ", count);
}

}  // namespace npu::detection

// Rotated boxes that suppress those which they overlap by more than a threshold of intersection over union.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "ep/kernels/detection/rotated.h"

namespace npu::detection {

class ChosenRotatedBoxes {
 public:
  explicit ChosenRotatedBoxes(double threshold) : threshold_(threshold) {}

  size_t size() const { return boxes_.size(); }

  // Adds the box unless one of those before suppresses it; returns whether it did.
  bool Add(const RotatedBox& box) {
    const double reach = std::hypot(box.width, box.height) / 2;
    if (CountsArea(box) && Suppresses(box, reach)) return false;
    boxes_.push_back(box);
    reaches_.push_back(reach);
    return true;
  }

 private:
  // An area that a float32 computation of it would not tell from none.
  static bool CountsArea(const RotatedBox& box) { return box.HasArea() && box.Area() >= 1e-14; }

  bool Suppresses(const RotatedBox& box, double reach) const {
    for (size_t i = 0; i < boxes_.size(); ++i) {
      const RotatedBox& other = boxes_[i];
      const double dx = box.x - other.x, dy = box.y - other.y, most = reach + reaches_[i];
      // Boxes whose circles do not meet, the most of an image, need no polygon; NaN does not pass either.
      if (!(dx * dx + dy * dy <= most * most) || !CountsArea(other)) continue;
      const double both = RotatedIntersection(box, other);
      if (both / (box.Area() + other.Area() - both) > threshold_) return true;
    }
    return false;
  }

  double threshold_;
  std::vector<RotatedBox> boxes_;
  std::vector<double> reaches_;
};

}  // namespace npu::detection

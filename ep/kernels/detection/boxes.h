// Axis-aligned boxes.
#pragma once

#include <algorithm>

namespace npu::detection {

struct Box {
  float left, top, right, bottom;

  float Area() const { return (right - left) * (bottom - top); }
  // Of any two opposite corners.
  static Box OfCorners(float y1, float x1, float y2, float x2) {
    return {std::min(x1, x2), std::min(y1, y2), std::max(x1, x2), std::max(y1, y2)};
  }
  static Box OfCentre(float x, float y, float width, float height) {
    return OfCorners(y - height / 2, x - width / 2, y + height / 2, x + width / 2);
  }
};

}  // namespace npu::detection

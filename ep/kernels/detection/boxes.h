// Axis-aligned boxes and their overlap.
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

// Whether intersection over union exceeds `threshold`; never for a box without area, or with NaN.
inline bool Overlap(const Box& a, const Box& b, float threshold) {
  const float width = std::min(a.right, b.right) - std::max(a.left, b.left);
  const float height = std::min(a.bottom, b.bottom) - std::max(a.top, b.top);
  if (!(width > 0 && height > 0)) return false;
  const float both = width * height;
  return both / (a.Area() + b.Area() - both) > threshold;
}

}  // namespace npu::detection

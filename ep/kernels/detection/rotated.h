// Rotated rectangles and the area that two have in common.
#pragma once

#include <array>
#include <cmath>

namespace npu::detection {

struct Point {
  double x, y;
};

struct RotatedBox {
  double x, y, width, height, degrees;

  static RotatedBox OfCentre(const float* b) { return {b[0], b[1], b[2], b[3], b[4]}; }
  static RotatedBox OfCorners(const float* b) {
    return {(double{b[0]} + b[2]) / 2, (double{b[1]} + b[3]) / 2, double{b[2]} - b[0], double{b[3]} - b[1], b[4]};
  }

  double Area() const { return width * height; }
  // Whether the box covers an area that can be computed.
  bool HasArea() const {
    return width > 0 && height > 0 && std::isfinite(width) && std::isfinite(height) && std::isfinite(x) &&
           std::isfinite(y) && std::isfinite(degrees);
  }
};

// A convex polygon; 4 corners cut by 4 lines have at most 8.
class Polygon {
 public:
  void Add(Point p) { corners_[static_cast<size_t>(count_++)] = p; }

  double Area() const {
    double twice = 0;
    for (int i = 1; i + 1 < count_; ++i) {
      const Point a = At(0), b = At(i), c = At(i + 1);
      twice += (b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x);
    }
    return std::abs(twice) / 2;
  }

  // What lies where x * p.x + y * p.y <= limit.
  Polygon Within(double x, double y, double limit) const {
    Polygon kept;
    for (int i = 0; i < count_; ++i) {
      const Point a = At(i), b = At((i + 1) % count_);
      const double of_a = x * a.x + y * a.y - limit, of_b = x * b.x + y * b.y - limit;
      if (of_a <= 0) kept.Add(a);
      if ((of_a < 0 && of_b > 0) || (of_a > 0 && of_b < 0)) {
        const double t = of_a / (of_a - of_b);
        kept.Add({a.x + t * (b.x - a.x), a.y + t * (b.y - a.y)});
      }
    }
    return kept;
  }

 private:
  Point At(int i) const { return corners_[static_cast<size_t>(i)]; }

  // Rounding may make a cut polygon not quite convex: each of four cuts then adds at most as many corners again.
  std::array<Point, 64> corners_;
  int count_ = 0;
};

// The area that two boxes have in common, 0 if one has none. In the coordinates of `b`, whose sides are the limits.
inline double RotatedIntersection(const RotatedBox& a, const RotatedBox& b) {
  if (!a.HasArea() || !b.HasArea()) return 0;
  const double turn = (a.degrees - b.degrees) * M_PI / 180, back = -b.degrees * M_PI / 180;
  const double dx = a.x - b.x, dy = a.y - b.y;
  const Point centre{dx * std::cos(back) - dy * std::sin(back), dx * std::sin(back) + dy * std::cos(back)};
  const double c = std::cos(turn), s = std::sin(turn);
  Polygon polygon;
  for (const auto& [i, j] : {std::array{1, 1}, std::array{-1, 1}, std::array{-1, -1}, std::array{1, -1}}) {
    const double w = i * a.width / 2, h = j * a.height / 2;
    polygon.Add({centre.x + w * c - h * s, centre.y + w * s + h * c});
  }
  for (const double side : {1.0, -1.0}) polygon = polygon.Within(side, 0, b.width / 2).Within(0, side, b.height / 2);
  return polygon.Area();
}

}  // namespace npu::detection

// What one coordinate of a grid reads along its dimension: a few taps, which are input positions with weights, and the
// derivatives of these weights with respect to the coordinate.
#pragma once

#include <cmath>
#include <cstdint>

namespace npu::resample {

enum class Interpolation { kNearest, kLinear, kCubic };
enum class Padding { kZeros, kBorder, kReflection };

struct Sampling {
  Interpolation interpolation;
  Padding padding;
  bool align_corners;
};

template <class C>
struct CoordinateTaps {
  int count = 1;
  int64_t position[4] = {0};  // -1: outside the input, which counts as 0
  C weight[4] = {1};
  C slope[4] = {0};
};

// -1 also for NaN and for values that no integer represents.
template <class C>
int64_t PositionOf(C x, int64_t size) {
  return x >= 0 && x < static_cast<C>(size) ? static_cast<int64_t>(x) : -1;
}

// Maps [-1, 1] to positions. The ends are the centres of the first and the last position if corners are aligned, else
// their outer edges.
template <class C>
C Unnormalized(C coordinate, int64_t size, bool align_corners, C* slope) {
  const C length = static_cast<C>(align_corners ? size - 1 : size);
  *slope = length / 2;
  return align_corners ? (coordinate + 1) / 2 * length : ((coordinate + 1) * length - 1) / 2;
}

// NaN is clamped to the first position.
template <class C>
C Clamped(C x, int64_t size, C* slope) {
  const C last = static_cast<C>(size - 1);
  if (x > 0 && x < last) return x;
  *slope = 0;
  return x >= last ? last : C{0};
}

template <class C>
C Reflected(C x, int64_t size, bool align_corners, C* slope) {
  const C low = align_corners ? C{0} : C{-0.5}, span = static_cast<C>(align_corners ? size - 1 : size);
  if (span == 0) {
    *slope = 0;
    return 0;
  }
  const C folded = std::fmod(std::fabs(x - low), 2 * span);
  const bool backwards = folded >= span;
  if ((x < low) != backwards) *slope = -*slope;
  return (backwards ? 2 * span - folded : folded) + low;
}

template <class C>
C Padded(C x, int64_t size, const Sampling& how, C* slope) {
  if (how.padding == Padding::kZeros) return x;
  if (how.padding == Padding::kReflection) x = Reflected(x, size, how.align_corners, slope);
  return Clamped(x, size, slope);
}

// Cubic convolution with a = -0.75, for distances between tap and point of up to 1, and from 1 to 2.
template <class C>
struct CubicConvolution {
  static constexpr C a = C{-0.75};
  static C Near(C d) { return ((a + 2) * d - (a + 3)) * d * d + 1; }
  static C Far(C d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; }
  static C NearSlope(C d) { return (3 * (a + 2) * d - 2 * (a + 3)) * d; }
  static C FarSlope(C d) { return (3 * a * d - 10 * a) * d + 8 * a; }
};

// Padding applies to each tap: the weights are those of the unpadded point, inside or outside.
template <class C>
CoordinateTaps<C> CubicTapsAt(C coordinate, int64_t size, const Sampling& how) {
  using Cubic = CubicConvolution<C>;
  C slope = 0, unused = 0;
  const C x = Unnormalized(coordinate, size, how.align_corners, &slope);
  const C low = std::floor(x), t = x - low;
  CoordinateTaps<C> taps{.count = 4,
                         .weight = {Cubic::Far(1 + t), Cubic::Near(t), Cubic::Near(1 - t), Cubic::Far(2 - t)},
                         .slope = {slope * Cubic::FarSlope(1 + t), slope * Cubic::NearSlope(t),
                                   -slope * Cubic::NearSlope(1 - t), -slope * Cubic::FarSlope(2 - t)}};
  for (int i = 0; i < 4; ++i)
    taps.position[i] = PositionOf(Padded(low + static_cast<C>(i - 1), size, how, &unused), size);
  return taps;
}

template <class C>
CoordinateTaps<C> TapsAt(C coordinate, int64_t size, const Sampling& how) {
  if (coordinate != coordinate) coordinate = -1;  // as torch documents for NaN
  if (how.interpolation == Interpolation::kCubic) return CubicTapsAt(coordinate, size, how);
  C slope = 0;
  const C x = Padded(Unnormalized(coordinate, size, how.align_corners, &slope), size, how, &slope);
  if (how.interpolation == Interpolation::kNearest) return {.position = {PositionOf(std::nearbyint(x), size)}};
  const C low = std::floor(x);
  return {.count = 2,
          .position = {PositionOf(low, size), PositionOf(low + 1, size)},
          .weight = {low + 1 - x, x - low},
          .slope = {-slope, slope}};
}

}  // namespace npu::resample

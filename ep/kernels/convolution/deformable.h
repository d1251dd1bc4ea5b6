// Deformable convolutions: each tap of each output reads the input at a place of its own, between pixels. The samples
// become the columns of a product with the filters. C is what is computed in, float or double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ep/kernels/gemm/packed_weight.h"
#include "ep/kernels/matmul/plain_product.h"
#include "ep/runtime/kernel_api.h"

namespace npu::convolution {

struct DeformableSizes {
  int64_t batch, channels, rows, columns;                                 // of the input
  int64_t channels_out, height, width;                                    // of the result
  int64_t kh, kw, step_y, step_x, top, left, gap_y, gap_x, groups, sets;  // sets: of offsets

  int64_t taps() const { return kh * kw; }
  int64_t positions() const { return height * width; }
  int64_t depth() const { return channels / groups * taps(); }  // products of a result
  int64_t SetOf(int64_t channel) const { return channel / (channels / sets); }

  // The memory that MultiplySamples needs; none without products.
  size_t PackedBytes() const { return depth() == 0 ? 0 : gemm::PackedBytes(DType::kFloat32, depth(), positions()); }
};

// For one tap, a value for each position of the result: how far from its place it reads, and what it counts.
template <class C>
struct TapOffsets {
  const C *y, *x;
  const C* mask;  // null: 1
};

// The bilinear value of a plane; pixels outside count 0.
template <class C>
C BilinearAt(const C* plane, const DeformableSizes& s, double y, double x) {
  if (!(y > -1 && y < static_cast<double>(s.rows) && x > -1 && x < static_cast<double>(s.columns)))
    return y == y && x == x ? C{0} : std::numeric_limits<C>::quiet_NaN();
  const double low_y = std::floor(y), low_x = std::floor(x), part_y = y - low_y, part_x = x - low_x;
  const auto row = static_cast<int64_t>(low_y), column = static_cast<int64_t>(low_x);
  double sum = 0;
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      if (row + i < 0 || row + i >= s.rows || column + j < 0 || column + j >= s.columns) continue;
      sum +=
          plane[(row + i) * s.columns + column + j] * ((i == 1 ? part_y : 1 - part_y) * (j == 1 ? part_x : 1 - part_x));
    }
  }
  return static_cast<C>(sum);
}

// The samples [taps, positions] of one plane; offsets(tap) returns the TapOffsets.
template <class C, class Offsets>
void SamplePlane(const C* plane, const DeformableSizes& s, const Offsets& offsets, C* taken) {
  for (int64_t tap = 0; tap < s.taps(); ++tap) {
    const TapOffsets<C> by = offsets(tap);
    for (int64_t at = 0; at < s.positions(); ++at) {
      const int64_t oh = at / s.width, ow = at % s.width;
      const double y = static_cast<double>(oh * s.step_y - s.top + tap / s.kw * s.gap_y) + by.y[at];
      const double x = static_cast<double>(ow * s.step_x - s.left + tap % s.kw * s.gap_x) + by.x[at];
      const C value = BilinearAt(plane, s, y, x);
      *taken++ = by.mask == nullptr ? value : by.mask[at] * value;
    }
  }
}

// One image of the result, from its samples [channels, taps, positions]; `packed` has PackedBytes. Bias may be null.
template <class C>
void MultiplySamples(const DeformableSizes& s, const C* taken, const C* filters, const C* bias, void* packed, C* y) {
  const int64_t rows = s.channels_out / s.groups, depth = s.depth(), positions = s.positions();
  for (int64_t g = 0; rows > 0 && g < s.groups; ++g) {
    C* to = y + g * rows * positions;
    if (depth == 0) {
      std::fill_n(to, rows * positions, C{0});
      continue;
    }
    const auto left = gemm::Matrix::RowMajor(filters + g * rows * depth, rows, depth);
    const auto right = gemm::Matrix::RowMajor(taken + g * depth * positions, depth, positions);
    if constexpr (std::is_same_v<C, double>) {
      PlainProduct<double, double>(left, right, to);
    } else {
      gemm::Pack(DType::kFloat32, right, packed, DType::kFloat32);
      gemm::Multiply(left, gemm::PackedMatrix{packed, DType::kFloat32, DType::kFloat32, depth, positions},
                     {to, DType::kFloat32, positions});
    }
  }
  for (int64_t m = 0; bias != nullptr && m < s.channels_out; ++m)
    for (int64_t i = 0; i < positions; ++i) y[m * positions + i] += bias[m];
}

// Floats of a workspace, for at least one.
inline float* FloatWorkspace(OpContext& ctx, const Shape& shape) {
  return static_cast<float*>(ctx.Workspace(std::max<size_t>(BytesFor(DType::kFloat32, shape.Elements()), 1)));
}

}  // namespace npu::convolution

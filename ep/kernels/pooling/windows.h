// Which positions of the input each element of a pool's output covers, for any number of spatial dimensions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu::pooling {

// One window along one axis: the positions begin, begin + dilation, … below end.
struct Window {
  int64_t begin, end;
  int64_t count;   // of those positions
  int64_t padded;  // of those and of the window's positions in the padding
};

struct Axis {
  int64_t in = 0, out = 0;
  int64_t kernel = 0;  // 0: adaptive, `out` windows that share the input evenly
  int64_t stride = 1, dilation = 1;
  int64_t before = 0, after = 0;  // padding

  Window At(int64_t o) const;
  // The positions from the first that `outputs` neighbouring outputs read to the last.
  int64_t Extent(int64_t outputs) const { return (outputs - 1) * stride + (kernel - 1) * dilation + 1; }
};

// Bounds attributes, so that no position overflows.
inline constexpr int64_t kMaxAttribute = int64_t{1} << 30;

// A list of `count` values from `least` to kMaxAttribute.
std::vector<int64_t> ReadList(const char* op, const Attributes& attributes, const char* name, size_t count,
                              int64_t fallback, int64_t least);

enum class AutoPad { kNotSet, kSameUpper, kSameLower, kValid };
AutoPad ReadAutoPad(const char* op, const Attributes& attributes);

// The attributes of a sliding window, as the ONNX pools have them.
class Sliding {
 public:
  Sliding(const char* op, const Attributes& attributes);
  // A window of this size, which may be smaller than the padding.
  Sliding(const char* op, const Attributes& attributes, std::vector<int64_t> kernel);

  // The spatial axes of an input [N, C, …].
  std::vector<Axis> AxesOf(const Shape& input) const;

 private:
  Axis AxisOf(size_t d, int64_t in) const;

  const char* op_;
  std::vector<int64_t> kernel_, strides_, dilations_, pads_;
  AutoPad auto_pad_ = AutoPad::kNotSet;
  bool ceil_;
};

// Adaptive windows, which share each axis evenly; `sizes`: of the output.
std::vector<Axis> AdaptiveAxes(const char* op, const Shape& input, const std::vector<int64_t>& sizes);

Shape OutputShape(const Shape& input, const std::vector<Axis>& axes);

// The windows of one plane (the spatial positions of one sample and channel), the same for all planes. Rows run along
// the last axis. Made only where the output has elements.
class Plan {
 public:
  Plan(const Shape& input, std::vector<Axis> axes, bool column_major = false);

  int64_t planes() const { return planes_; }
  int64_t inputs() const { return rows_in_ * width(); }      // of a plane
  int64_t outputs() const { return rows_out_ * columns(); }  // of a plane
  int64_t rows_in() const { return rows_in_; }
  int64_t rows_out() const { return rows_out_; }
  int64_t width() const { return axes_.back().in; }  // of an input row
  int64_t columns() const { return axes_.back().out; }
  const std::vector<Window>& windows() const { return windows_; }    // of the last axis
  int64_t step() const { return axes_.back().dilation; }             // within each of those
  int64_t column_index() const { return index_stride_[leading()]; }  // between two neighbours of an input row
  int64_t RowGrain() const { return npu::RowGrain(columns() * taps_); }
  int64_t PlaneGrain() const { return npu::RowGrain(outputs() * taps_); }

  // f(row of the plane's input, index of its first position) for every input row that an output row covers.
  template <class F>
  void ForEachInputRow(int64_t output_row, const F& f) const;
  // The index of the first position that the output row covers, in its first column.
  int64_t FirstIndex(int64_t output_row) const;
  // The number of input rows that an output row covers, including those in the padding or not.
  double RowCount(int64_t output_row, bool padded) const;

  // Whether loops run over the windows' taps outside and over the columns inside, which vectorises short windows.
  bool by_tap() const { return by_tap_; }
  // f(first column, columns, position of the first, stride) for every tap of the last axis. Common strides are passed
  // as constants.
  template <class F>
  void ForEachTap(const F& f) const;

 private:
  using Strides = std::array<int64_t, Shape::kMaxRank>;
  using Positions = std::array<Window, Shape::kMaxRank>;
  int leading() const { return static_cast<int>(axes_.size()) - 1; }
  Positions WindowsOf(int64_t output_row) const;

  std::vector<Axis> axes_;
  std::vector<Window> windows_;
  Strides row_stride_;    // of an axis, in rows of the input
  Strides index_stride_;  // of an axis, in the order that indices count in
  int64_t planes_, rows_in_ = 1, rows_out_ = 1, taps_ = 1;
  bool by_tap_;
};

template <class F>
void Plan::ForEachInputRow(int64_t output_row, const F& f) const {
  const Positions windows = WindowsOf(output_row);
  std::array<int64_t, Shape::kMaxRank> at{};
  int64_t row = 0, index = 0;
  for (int d = 0; d < leading(); ++d) {
    if (windows[d].count == 0) return;
    at[d] = windows[d].begin;
    row += at[d] * row_stride_[d];
    index += at[d] * index_stride_[d];
  }
  while (true) {
    f(row, index);
    int d = leading() - 1;
    for (; d >= 0; --d) {
      const int64_t next = at[d] + axes_[d].dilation;
      const int64_t to = next < windows[d].end ? next : windows[d].begin;
      row += (to - at[d]) * row_stride_[d];
      index += (to - at[d]) * index_stride_[d];
      at[d] = to;
      if (next < windows[d].end) break;
    }
    if (d < 0) return;
  }
}

template <class F>
void Plan::ForEachTap(const F& f) const {
  const Axis& axis = axes_.back();
  for (int64_t k = 0; k < axis.kernel; ++k) {
    const int64_t offset = k * axis.dilation - axis.before;
    if (offset >= axis.in) return;
    const int64_t first = offset >= 0 ? 0 : (-offset + axis.stride - 1) / axis.stride;
    const int64_t count = std::min(axis.out, (axis.in - offset - 1) / axis.stride + 1) - first;
    if (count <= 0) continue;
    const int64_t position = first * axis.stride + offset;
    if (axis.stride == 1) {
      f(first, count, position, std::integral_constant<int64_t, 1>{});
    } else if (axis.stride == 2) {
      f(first, count, position, std::integral_constant<int64_t, 2>{});
    } else {
      f(first, count, position, axis.stride);
    }
  }
}

}  // namespace npu::pooling

// What a convolution reads through each tap of its kernel, for any number of spatial dimensions. Positions of the input
// and the output are counted in row-major order within a plane, one channel of one image; rows run along the last axis.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "ep/kernels/pooling/windows.h"

namespace npu::convolution {

using pooling::Axis;

// Neighbouring outputs of one row that a tap reads inside the input: output `first + i` reads input
// `position + i * stride`, for i below `count`. Outputs between `begin` and `end` that it leaves out read padding.
struct Run {
  int64_t tap;
  int64_t begin, end;  // the outputs that were asked for, in this row
  int64_t first, count;
  int64_t position;
};

class Taps {
 public:
  explicit Taps(std::vector<Axis> axes) : axes_(std::move(axes)) {
    for (const Axis& axis : axes_) {
      inputs_ *= axis.in;
      outputs_ *= axis.out;
      taps_ *= axis.kernel;
    }
  }

  int64_t inputs() const { return inputs_; }    // of a plane
  int64_t outputs() const { return outputs_; }  // of a plane
  int64_t count() const { return taps_; }
  int64_t width() const { return axes_.back().out; }  // of an output row
  int64_t stride() const { return axes_.back().stride; }
  const std::vector<Axis>& axes() const { return axes_; }
  // Whether output p reads input p, and nothing else.
  bool pointwise() const {
    return std::all_of(axes_.begin(), axes_.end(),
                       [](const Axis& a) { return a.kernel == 1 && a.stride == 1 && a.in == a.out && a.before == 0; });
  }

  // The row of the input that row `row` of the output reads through the taps `row_tap` of all axes but the last, both
  // in row-major order; -1 is padding.
  int64_t LineOf(int64_t row, int64_t row_tap) const {
    int64_t line = 0, pitch = 1;
    for (size_t d = axes_.size() - 1; d-- > 0;) {
      const Axis& axis = axes_[d];
      const int64_t at = row % axis.out * axis.stride + row_tap % axis.kernel * axis.dilation - axis.before;
      if (at < 0 || at >= axis.in) return -1;
      line += at * pitch;
      pitch *= axis.in;
      row /= axis.out;
      row_tap /= axis.kernel;
    }
    return line;
  }

  // The runs of all taps for the outputs [begin, end) of the plane, a row after the other.
  std::vector<Run> RunsOf(int64_t begin, int64_t end) const {
    std::vector<Run> runs;
    while (begin < end) {
      const int64_t row = begin / width(), stop = std::min(end, (row + 1) * width());
      for (int64_t tap = 0; tap < taps_; ++tap) runs.push_back(RunOf(tap, row, begin, stop));
      begin = stop;
    }
    return runs;
  }

 private:
  Run RunOf(int64_t tap, int64_t row, int64_t begin, int64_t end) const {
    Run run{tap, begin, end, begin, 0, 0};
    const Axis& last = axes_.back();
    const int64_t offset = tap % last.kernel * last.dilation - last.before;
    const int64_t line = LineOf(row, tap / last.kernel);
    if (line < 0) return run;
    // The columns whose positions column * stride + offset are in [0, in).
    const int64_t start = row * last.out, low = offset >= 0 ? 0 : (-offset + last.stride - 1) / last.stride;
    const int64_t high = last.in - offset <= 0 ? 0 : (last.in - offset - 1) / last.stride + 1;
    run.first = std::clamp(start + low, begin, end);
    run.count = std::max<int64_t>(0, std::clamp(start + high, begin, end) - run.first);
    run.position = line * last.in + (run.first - start) * last.stride + offset;
    return run;
  }

  std::vector<Axis> axes_;
  int64_t inputs_ = 1, outputs_ = 1, taps_ = 1;
};

// f(a constant) for common strides, so that loops over them vectorise.
template <class F>
void WithStride(int64_t stride, const F& f) {
  if (stride == 1) return f(std::integral_constant<int64_t, 1>{});
  if (stride == 2) return f(std::integral_constant<int64_t, 2>{});
  f(stride);
}

}  // namespace npu::convolution

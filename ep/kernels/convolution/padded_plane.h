// A plane with its padding, in which a convolution of stride 1 reads through each tap one long row: output and input
// positions have the same pitches, so that all outputs are at one distance from what they read. The outputs' rows then
// have a few positions too many, which are dropped.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/convolution/taps.h"

namespace npu::convolution {

class PaddedPlane {
 public:
  explicit PaddedPlane(const Taps& taps) : axes_(taps.axes()), pitch_(axes_.size(), 1) {
    for (size_t d = axes_.size(); d-- > 0;) {
      pitch_[d] = size_;
      size_ *= axes_[d].in + axes_[d].before + axes_[d].after;
      length_ += (axes_[d].out - 1) * pitch_[d];
    }
    for (int64_t tap = 0; tap < taps.count(); ++tap) {
      int64_t rest = tap, offset = 0;
      for (size_t d = axes_.size(); d-- > 0; rest /= axes_[d].kernel)
        offset += rest % axes_[d].kernel * axes_[d].dilation * pitch_[d];
      offsets_.push_back(offset);
    }
  }

  // Whether all strides are 1 and the padding is not most of the plane, of which hostile dilations can need any amount.
  static bool Suits(const Taps& taps) {
    double size = 1;
    for (const Axis& axis : taps.axes()) {
      if (axis.stride != 1) return false;
      size *= static_cast<double>(axis.in + axis.before + axis.after);
    }
    return size <= 4.0 * static_cast<double>(taps.inputs() + taps.outputs());
  }

  int64_t size() const { return size_; }
  int64_t length() const { return length_; }  // of the long row
  // Of the tap: output i of the long row reads position i + offset.
  int64_t offset(int64_t tap) const { return offsets_[static_cast<size_t>(tap)]; }

  // Copies a plane into one whose padding is zero.
  template <class C>
  void Write(const C* plane, C* padded) const {
    int64_t first = 0;
    for (size_t d = 0; d < axes_.size(); ++d) first += axes_[d].before * pitch_[d];
    ForEachRow(&Axis::in, [&](int64_t row, int64_t at) {
      std::copy_n(plane + row * axes_.back().in, axes_.back().in, padded + first + at);
    });
  }
  // Copies the outputs out of the long row.
  template <class C>
  void Read(const C* row_of_all, C* outputs) const {
    ForEachRow(&Axis::out, [&](int64_t row, int64_t at) {
      std::copy_n(row_of_all + at, axes_.back().out, outputs + row * axes_.back().out);
    });
  }

 private:
  // f(number of the row, its position) for all rows of a plane with these sizes.
  template <class F>
  void ForEachRow(int64_t Axis::* size, const F& f) const {
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < axes_.size(); ++d) rows *= axes_[d].*size;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t rest = row, at = 0;
      for (size_t d = axes_.size() - 1; d-- > 0; rest /= axes_[d].*size) at += rest % (axes_[d].*size) * pitch_[d];
      f(row, at);
    }
  }

  std::vector<Axis> axes_;
  std::vector<int64_t> pitch_, offsets_;
  int64_t size_ = 1, length_ = 1;
};

}  // namespace npu::convolution

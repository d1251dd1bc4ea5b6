// A plane with its padding, in which a convolution reads through each tap one long row: output and input positions have
// the same pitches, so that all outputs are at one distance from what they read. The outputs' rows then have a few
// positions too many, which are dropped. With strides the plane is taken apart into phases, each of which has what a
// tap reads in neighbouring places: of stride 2, the even positions and the odd ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ep/kernels/convolution/taps.h"

namespace npu::convolution {

// Outputs that are neighbours in the plane and in the long row.
struct Segment {
  int64_t first;     // the number of the output
  int64_t position;  // in the long row
  int64_t count;
};

class PaddedPlane {
 public:
  explicit PaddedPlane(const Taps& taps)
      : axes_(taps.axes()), pitch_(axes_.size()), phase_pitch_(axes_.size()), reads_(axes_.size()) {
    int64_t phases = 1;
    for (size_t d = axes_.size(); d-- > 0;) {
      pitch_[d] = phase_size_;
      phase_size_ *= Length(axes_[d]);
      phase_pitch_[d] = phases;
      phases *= axes_[d].stride;
      length_ += (axes_[d].out - 1) * pitch_[d];
      reads_[d].resize(static_cast<size_t>(axes_[d].stride));
      for (int64_t k = 0; k < axes_[d].kernel; ++k)
        reads_[d][static_cast<size_t>(k * axes_[d].dilation % axes_[d].stride)] = true;
    }
    size_ = phases * phase_size_;
    PlanRows();
    for (int64_t tap = 0; tap < taps.count(); ++tap) {
      int64_t rest = tap, offset = 0;
      for (size_t d = axes_.size(); d-- > 0; rest /= axes_[d].kernel)
        offset += OffsetOf(d, rest % axes_[d].kernel * axes_[d].dilation);
      offsets_.push_back(offset);
    }
  }

  // Whether padding is not most of the plane: hostile dilations can need any amount.
  static bool Suits(const Taps& taps) {
    double size = 1;
    for (const Axis& axis : taps.axes()) size *= static_cast<double>(Length(axis)) * static_cast<double>(axis.stride);
    return size <= 4.0 * static_cast<double>(taps.inputs() + taps.outputs());
  }

  int64_t size() const { return size_; }
  int64_t length() const { return length_; }  // of the long row
  int64_t taps() const { return static_cast<int64_t>(offsets_.size()); }
  // Of the tap: output i of the long row reads position i + offset.
  int64_t offset(int64_t tap) const { return offsets_[static_cast<size_t>(tap)]; }

  // Writes a part of a plane with its padding; `part` of `parts`.
  template <class C>
  void WritePart(const C* plane, C* padded, int64_t part, int64_t parts) const {
    for (const Padding& zeros : PartOf(padding_, part, parts))
      for (int64_t i = zeros.begin; i < zeros.end; ++i) padded[i] = C{0};
    WriteRows(PartOf(rows_in_, part, parts), plane, padded);
  }
  // Copies what is read of a plane into one whose padding is zero.
  template <class C>
  void Write(const C* plane, C* padded) const {
    WriteRows(std::span(rows_in_), plane, padded);
  }
  // Copies the outputs out of the long row.
  template <class C>
  void Read(const C* row_of_all, C* outputs) const {
    const int64_t width = axes_.back().out;
    for (const int64_t position : rows_out_) {
      CopyRow(row_of_all + position, width, outputs);
      outputs += width;
    }
  }
  // The outputs [begin, end), row by row.
  std::vector<Segment> SegmentsOf(int64_t begin, int64_t end) const {
    std::vector<Segment> segments;
    const int64_t width = axes_.back().out;
    while (begin < end) {
      const int64_t row = begin / width, column = begin % width, count = std::min(end - begin, width - column);
      segments.push_back({begin, rows_out_[static_cast<size_t>(row)] + column, count});
      begin += count;
    }
    return segments;
  }

 private:
  // The coordinate of a row along each axis but the last, in a plane with these sizes.
  struct Coordinates {
    const std::vector<Axis>& axes;
    int64_t Axis::* size;
    int64_t row;

    int64_t operator()(size_t axis) const {
      int64_t rest = row;
      for (size_t d = axes.size() - 2; d > axis; --d) rest /= axes[d].*size;
      return rest % (axes[axis].*size);
    }
  };
  // Positions of a phase along an axis.
  static int64_t Length(const Axis& axis) {
    return (axis.in + axis.before + axis.after + axis.stride - 1) / axis.stride;
  }
  // Whether any tap reads this position of the padded axis.
  bool Reads(size_t d, int64_t at) const { return reads_[d][static_cast<size_t>(at % axes_[d].stride)]; }
  // Of position `at` of the padded axis.
  int64_t OffsetOf(size_t d, int64_t at) const {
    return at / axes_[d].stride * pitch_[d] + at % axes_[d].stride * phase_pitch_[d] * phase_size_;
  }
  // A row of the plane, or what one phase has of it.
  struct RowCopy {
    int64_t from, to, count;
  };
  // Positions that are read and not copied.
  struct Padding {
    int64_t begin, end;
  };
  template <class Item>
  static std::span<const Item> PartOf(const std::vector<Item>& items, int64_t part, int64_t parts) {
    const auto count = static_cast<int64_t>(items.size()), begin = part * count / parts;
    return std::span(items).subspan(static_cast<size_t>(begin),
                                    static_cast<size_t>((part + 1) * count / parts - begin));
  }
  template <class C>
  void WriteRows(std::span<const RowCopy> rows, const C* plane, C* padded) const {
    const int64_t step = axes_.back().stride;
    for (const RowCopy& copy : rows) {
      if (step == 1) {
        CopyRow(plane + copy.from, copy.count, padded + copy.to);
      } else {
        CopyEvery(step, plane + copy.from, copy.count, padded + copy.to);
      }
    }
  }
  void PlanRows() {
    const size_t d = axes_.size() - 1;
    for (int64_t row = 0; row < Rows(&Axis::out); ++row) {
      const Coordinates coordinate{axes_, &Axis::out, row};
      int64_t position = 0;
      for (size_t e = 0; e < d; ++e) position += coordinate(e) * pitch_[e];
      rows_out_.push_back(position);
    }
    int64_t rows = 1;
    for (size_t e = 0; e < d; ++e) rows *= Length(axes_[e]) * axes_[e].stride;
    for (int64_t row = 0; row < rows; ++row) PlanRow(row);
  }
  // Of the rows of all phases: what it gets of the plane, and its padding.
  void PlanRow(int64_t row) {
    const size_t d = axes_.size() - 1;
    const Axis& last = axes_[d];
    int64_t rest = row, from = 0, begin = 0, rows_in = 1;
    bool inside = true;
    for (size_t e = d; e-- > 0;) {
      const Axis& axis = axes_[e];
      const int64_t count = Length(axis) * axis.stride, at = rest % count;
      if (!Reads(e, at)) return;
      rest /= count;
      begin += OffsetOf(e, at);
      inside = inside && at >= axis.before && at < axis.before + axis.in;
      from += (at - axis.before) * rows_in;
      rows_in *= axis.in;
    }
    for (int64_t phase = 0; phase < last.stride; ++phase) {
      if (!Reads(d, phase)) continue;
      const int64_t first = (phase + last.before * (last.stride - 1)) % last.stride;
      const int64_t count = inside && first < last.in ? (last.in - first + last.stride - 1) / last.stride : 0;
      const int64_t of_phase = begin + OffsetOf(d, phase), end = of_phase + Length(last);
      const int64_t to = of_phase + (first + last.before) / last.stride;
      if (count > 0) rows_in_.push_back({from * last.in + first, to, count});
      padding_.push_back({of_phase, count > 0 ? to : end});
      if (count > 0) padding_.push_back({to + count, end});
    }
  }
  int64_t Rows(int64_t Axis::* size) const {
    int64_t rows = 1;
    for (size_t d = 0; d + 1 < axes_.size(); ++d) rows *= axes_[d].*size;
    return rows;
  }

  // Rows are short, so that a call of memcpy would take most of the time: blocks, the last of which overlaps.
  template <class C>
  static void CopyRow(const C* from, int64_t count, C* to) {
    if (count >= 16) return CopyBlocks<16>(from, count, to);
    if (count >= 4) return CopyBlocks<4>(from, count, to);
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
  template <int64_t kBlock, class C>
  static void CopyBlocks(const C* from, int64_t count, C* to) {
    for (int64_t i = 0; i < count - kBlock; i += kBlock) std::memcpy(to + i, from + i, kBlock * sizeof(C));
    std::memcpy(to + count - kBlock, from + count - kBlock, kBlock * sizeof(C));
  }
  template <class C>
  static void CopyEvery(int64_t step, const C* from, int64_t count, C* to) {
    WithStride(step, [&](auto stride) {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i * stride];
    });
  }

  std::vector<Axis> axes_;
  std::vector<int64_t> pitch_, phase_pitch_;  // of an axis: positions of a phase, and phases
  std::vector<std::vector<bool>> reads_;      // of an axis and phase
  std::vector<int64_t> offsets_;
  std::vector<RowCopy> rows_in_;
  std::vector<Padding> padding_;
  std::vector<int64_t> rows_out_;  // where they begin in the long row
  int64_t phase_size_ = 1, size_ = 0, length_ = 1;
};

}  // namespace npu::convolution

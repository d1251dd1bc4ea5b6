// What output rows of a convolution read of an image [H, W, C].
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/convolution/channels_last/pixel_source.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/pooling/windows.h"

namespace npu::channels_last {

using pooling::Axis;

// Input rows from the first tap of an output row on, with their padding. Output o of a row reads through tap k the
// pixel o * stride + k * dilation.
template <class T>
struct Rows {
  const T* data;
  int64_t row_pitch, pixel_pitch;  // in elements
};

// Pixels are stored with as many channels as are multiplied together, zero beyond those that they have.
template <class T>
class PaddedRows {
 public:
  // `stored`: channels of a pixel. `separate`: pixels of the same channel that neighbouring outputs read must not be a
  // multiple of a page apart. `copied`: always, since what is behind the image is read, too.
  PaddedRows(const std::vector<Axis>& axes, int64_t channels, int64_t stored, bool separate, bool copied = false)
      : vertical_(axes[0]), horizontal_(axes[1]), channels_(channels), stored_(stored) {
    const bool inside = IsInside(vertical_) && IsInside(horizontal_);
    // So far apart, they are in one set of the first-level cache.
    constexpr int64_t kPage = 4096 / sizeof(T), kLine = 64 / sizeof(T);
    const bool collide = separate && horizontal_.stride * stored % kPage == 0;
    in_place_ = inside && !collide && stored == channels && !copied;
    pixel_pitch_ = collide ? stored + kLine : stored;
    row_pitch_ = in_place_ ? horizontal_.in * channels : horizontal_.Extent(horizontal_.out) * pixel_pitch_;
  }

  const Axis& vertical() const { return vertical_; }
  const Axis& horizontal() const { return horizontal_; }
  int64_t channels() const { return channels_; }
  int64_t stored() const { return stored_; }
  int64_t row_pitch() const { return row_pitch_; }
  int64_t pixel_pitch() const { return pixel_pitch_; }

  // The output rows whose input rows take `bytes`; one at least.
  int64_t RowsWithin(int64_t bytes) const {
    const int64_t fitting = bytes / (row_pitch_ * static_cast<int64_t>(sizeof(T)));
    return std::clamp<int64_t>((fitting - vertical_.Extent(1)) / vertical_.stride + 1, 1, vertical_.out);
  }

  // What Read will read of planes.
  PlaneLines LinesOf(const PixelSource<T>& x, int64_t image, int64_t begin, int64_t end) const {
    const int64_t first = std::max<int64_t>(begin * vertical_.stride - vertical_.before, 0);
    const int64_t last = std::min((end - 1) * vertical_.stride - vertical_.before + vertical_.Extent(1), vertical_.in);
    const int64_t pixel = (image * vertical_.in + first) * horizontal_.in;
    return x.LinesOf(pixel, std::min((last - first) * horizontal_.in, x.count - pixel));
  }

  // For the output rows [begin, end) of an image: where they are, or a copy in `scratch`, with `slack` elements of any
  // value behind.
  Rows<T> Read(const PixelSource<T>& x, int64_t image, int64_t begin, int64_t end, gemm::AlignedBuffer& scratch,
               int64_t slack = 0) const {
    const int64_t first = begin * vertical_.stride - vertical_.before, line = image * vertical_.in;
    if (in_place_) return {x.pixels + (line + first) * row_pitch_, row_pitch_, pixel_pitch_};
    const int64_t count = vertical_.Extent(end - begin), row_bytes = row_pitch_ * static_cast<int64_t>(sizeof(T));
    T* rows = static_cast<T*>(scratch.Reserve(count * row_bytes + slack * static_cast<int64_t>(sizeof(T))));
    for (int64_t r = 0; r < count; ++r) {
      const int64_t from = first + r;
      T* to = rows + r * row_pitch_;
      if (from < 0 || from >= vertical_.in) {
        std::fill(to, to + row_pitch_, T{});
      } else {
        CopyRow(x, (line + from) * horizontal_.in, to);
      }
    }
    return {rows, row_pitch_, pixel_pitch_};
  }

 private:
  static bool IsInside(const Axis& axis) { return axis.before == 0 && axis.Extent(axis.out) <= axis.in; }

  void CopyRow(const PixelSource<T>& x, int64_t first, T* to) const {
    const int64_t pixels = row_pitch_ / pixel_pitch_, begin = std::min(horizontal_.before, pixels);
    const int64_t end = std::min({begin + horizontal_.in, pixels, begin + x.count - first});
    std::fill(to, to + begin * pixel_pitch_, T{});
    x.Copy(first, end - begin, to + begin * pixel_pitch_, stored_, pixel_pitch_);
    std::fill(to + end * pixel_pitch_, to + row_pitch_, T{});
  }

  Axis vertical_, horizontal_;
  int64_t channels_, stored_, row_pitch_, pixel_pitch_;
  bool in_place_;
};

}  // namespace npu::channels_last

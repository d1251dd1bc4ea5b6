// A convolution with channels last whose groups are one channel each: vectors of channels, for a few neighbouring
// outputs at a time. Pixels of small images are read where they are, and those of the padding elsewhere; rows of large
// ones are copied first, since vectors of channels are read too far apart for the processor to foresee.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ep/kernels/convolution/channels_last/depthwise_sums.h"
#include "ep/kernels/convolution/channels_last/finish.h"
#include "ep/kernels/convolution/channels_last/padded_rows.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/pooling/windows.h"
#include "ep/kernels/row_block.h"

namespace npu::channels_last {

// T: the type of the pixels.
template <class T>
class Depthwise {
 public:
  using Axis = pooling::Axis;

  // `weight`: [kernel rows * kernel columns, channels]. `bias` may be null.
  Depthwise(const std::vector<Axis>& axes, int64_t images, const T* x, const float* weight, const float* bias,
            const Finish<T>& finish)
      : vertical_(axes[0]),
        horizontal_(axes[1]),
        images_(images),
        x_(x),
        weight_(weight),
        bias_(bias),
        finish_(finish),
        taps_{vertical_.kernel,     horizontal_.kernel, horizontal_.stride,
              horizontal_.dilation, finish.channels,    kTogether} {}

  void Run() const {
    const int64_t lines = images_ * vertical_.out;
    const int64_t work = horizontal_.out * finish_.channels * vertical_.kernel * horizontal_.kernel;
    finish_.activation.template WithFormula<float>([&](const auto& formula) {
      WithNeighbours(horizontal_.out, [&](auto outputs) {
        constexpr int64_t kOutputs = outputs.value;
        ParallelFor(lines, RowGrain(work), [&](int64_t begin, int64_t end) {
          if (vertical_.in * horizontal_.in * finish_.channels > kMostInPlace)
            return RunCopies<kOutputs>(formula, begin, end);
          RunInPlace<kOutputs>(formula, begin, end);
        });
      });
    });
  }

 private:
  // Values of an image. Measured with 1 MB of second-level cache: 28 × 28 × 240 are faster in place by a third, 112 ×
  // 112 × 16 by copies by a fifth, of either type.
  static constexpr int64_t kMostInPlace = 192 << 10;
  static constexpr int64_t kBlockBytes = 256 << 10;  // of rows that are copied together
  static constexpr int64_t kTogether = 128;          // channels that are finished together
  static constexpr int64_t kLanes = simd::kLanes;

  // Lines of all images, numbered through.
  template <int64_t kOutputs, class F>
  void RunCopies(const F& formula, int64_t begin, int64_t end) const {
    static thread_local gemm::AlignedBuffer scratch;
    const PaddedRows<T> padded({vertical_, horizontal_}, finish_.channels, finish_.channels, /*separate=*/false);
    const auto sum = DepthwiseFunctionOf<kOutputs, PixelsInside<T>>(taps_);
    const int64_t together = padded.RowsWithin(kBlockBytes), positions = vertical_.in * horizontal_.in;
    const PixelSource<T> x{x_, nullptr, finish_.channels, positions, images_ * positions};
    while (begin < end) {
      const int64_t image = begin / vertical_.out, first = begin % vertical_.out;
      const int64_t stop = std::min({first + together, vertical_.out, first + end - begin});
      const Rows<T> rows = padded.Read(x, image, first, stop, scratch);
      const int64_t row_pitch = vertical_.dilation * rows.row_pitch;
      for (int64_t line = first; line < stop; ++line, ++begin) {
        const T* from = rows.data + (line - first) * vertical_.stride * rows.row_pitch;
        for (int64_t output = 0; output < horizontal_.out; output += kOutputs) {
          const int64_t at = std::min(output, horizontal_.out - kOutputs);  // the last one overlaps
          RunOutputs<kOutputs>(
              formula, sum, PixelsInside<T>{from + at * taps_.stride * rows.pixel_pitch, row_pitch, rows.pixel_pitch},
              begin * horizontal_.out + at);
        }
      }
    }
  }

  template <int64_t kOutputs, class F>
  void RunInPlace(const F& formula, int64_t begin, int64_t end) const {
    static thread_local gemm::AlignedBuffer padding_buffer;
    T* padding = static_cast<T*>(padding_buffer.Reserve(finish_.channels * static_cast<int64_t>(sizeof(T))));
    std::fill_n(padding, finish_.channels, T{});
    const auto inside = DepthwiseFunctionOf<kOutputs, PixelsInside<T>>(taps_);
    const auto listed = DepthwiseFunctionOf<kOutputs, PixelsListed<T>>(taps_);
    const int64_t width = (kOutputs - 1) * taps_.stride + (taps_.columns - 1) * taps_.dilation + 1;
    std::vector<const T*> pixels(static_cast<size_t>(taps_.rows * width));
    const int64_t row_pitch = vertical_.dilation * horizontal_.in * finish_.channels;
    for (int64_t line = begin; line < end; ++line) {
      const T* image = x_ + line / vertical_.out * vertical_.in * horizontal_.in * finish_.channels;
      const int64_t y = line % vertical_.out * vertical_.stride - vertical_.before;
      const bool rows_inside = y >= 0 && y + (vertical_.kernel - 1) * vertical_.dilation < vertical_.in;
      for (int64_t output = 0; output < horizontal_.out; output += kOutputs) {
        const int64_t first = std::min(output, horizontal_.out - kOutputs);  // the last one overlaps
        const int64_t x = first * horizontal_.stride - horizontal_.before, pixel = line * horizontal_.out + first;
        if (rows_inside && x >= 0 && x + width <= horizontal_.in) {
          const T* from = image + (y * horizontal_.in + x) * finish_.channels;
          RunOutputs<kOutputs>(formula, inside, PixelsInside<T>{from, row_pitch, finish_.channels}, pixel);
        } else {
          List(image, y, x, width, padding, pixels.data());
          RunOutputs<kOutputs>(formula, listed, PixelsListed<T>{pixels.data(), width}, pixel);
        }
      }
    }
  }

  // What is read from position (y, x) on.
  void List(const T* image, int64_t y, int64_t x, int64_t width, const T* padding, const T** pixels) const {
    for (int64_t row = 0; row < taps_.rows; ++row, y += vertical_.dilation) {
      const bool outside = y < 0 || y >= vertical_.in;
      const T* line = image + y * horizontal_.in * finish_.channels;
      for (int64_t i = x; i < x + width; ++i)
        *pixels++ = outside || i < 0 || i >= horizontal_.in ? padding : line + i * finish_.channels;
    }
  }

  // All channels of some outputs, so that results are written one after the other.
  template <int64_t kOutputs, class P, class F>
  void RunOutputs(const F& formula, DepthwiseFunction<P> sum, const P& pixels, int64_t pixel) const {
    const int64_t channels = finish_.channels;
    if (channels < kLanes) return FewChannels(formula, pixels, kOutputs, pixel);
    alignas(64) float sums[kOutputs * kTogether];
    for (int64_t next = 0; next < channels; next += kTogether) {
      const int64_t channel = std::min(next, channels - kLanes);  // the last ones overlap
      const int64_t count = std::min(kTogether, channels - channel);
      for (int64_t c = 0; c < count; c += kLanes) {
        const int64_t at = std::min(c, count - kLanes);
        sum(taps_, pixels, channel + at, weight_ + channel + at, sums + at);
      }
      finish_.template Store<kTogether>(formula, sums, kOutputs, BiasOf(channel), pixel, channel, count);
    }
  }

  template <class P, class F>
  void FewChannels(const F& formula, const P& pixels, int64_t outputs, int64_t pixel) const {
    const int64_t channels = finish_.channels;
    for (int64_t o = 0; o < outputs; ++o) {
      alignas(64) float sums[kLanes] = {};
      const float* weight = weight_;
      for (int64_t row = 0; row < taps_.rows; ++row) {
        for (int64_t tap = 0; tap < taps_.columns; ++tap, weight += channels) {
          const T* in = pixels.At(row, o * taps_.stride + tap * taps_.dilation);
          for (int64_t c = 0; c < channels; ++c) sums[c] += weight[c] * ToFloat(in[c]);
        }
      }
      finish_.template Store<kLanes>(formula, sums, 1, BiasOf(0), pixel + o, 0, channels);
    }
  }

  const float* BiasOf(int64_t channel) const {
    static constexpr float kZeros[kTogether] = {};
    return bias_ != nullptr ? bias_ + channel : kZeros;
  }

  Axis vertical_, horizontal_;
  int64_t images_;
  const T* x_;
  const float* weight_;
  const float* bias_;
  Finish<T> finish_;
  DepthwiseTaps taps_;
};

}  // namespace npu::channels_last

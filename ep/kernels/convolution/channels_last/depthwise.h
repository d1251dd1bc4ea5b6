// A convolution with channels last whose groups are one channel each: vectors of channels, for a few neighbouring
// outputs at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "ep/kernels/convolution/channels_last/depthwise_sums.h"
#include "ep/kernels/convolution/channels_last/finish.h"
#include "ep/kernels/convolution/channels_last/padded_rows.h"
#include "ep/kernels/gemm/vector.h"

namespace npu::channels_last {

class Depthwise {
 public:
  // `weight`: [kernel rows * kernel columns, channels]. `bias` may be null.
  Depthwise(const std::vector<Axis>& axes, int64_t images, const float* x, const float* weight, const float* bias,
            const Finish& finish)
      : rows_(axes, finish.channels, finish.channels, /*separate=*/false),
        images_(images),
        x_(x),
        weight_(weight),
        bias_(bias),
        finish_(finish) {}

  void Run() const {
    const Axis& v = rows_.vertical();
    const int64_t threads = NumThreads(), lines = rows_.RowsWithin(kBlockBytes);
    int64_t pieces = (v.out + lines - 1) / lines;  // of an image
    if (images_ < threads) pieces = std::min(v.out, (pieces + threads - 1) / threads * threads);
    finish_.activation.WithFormula<float>([&](const auto& formula) {
      ParallelFor(images_ * pieces, 1, [&](int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit)
          RunLines(formula, unit / pieces, unit % pieces * v.out / pieces, (unit % pieces + 1) * v.out / pieces);
      });
    });
  }

 private:
  static constexpr int64_t kBlockBytes = 256 << 10;  // of rows that are read together
  static constexpr int kLanes = gemm::kLanes;

  template <class F>
  void RunLines(const F& formula, int64_t image, int64_t begin, int64_t end) const {
    static thread_local gemm::AlignedBuffer scratch;
    const Axis &v = rows_.vertical(), &h = rows_.horizontal();
    const int64_t channels = finish_.channels;
    const Rows<float> rows = rows_.Read(x_ + image * v.in * h.in * channels, begin, end, scratch);
    const DepthwiseTaps taps{
        v.kernel, h.kernel, v.dilation * rows.row_pitch, h.dilation * rows.pixel_pitch, h.stride * rows.pixel_pitch,
        channels};
    // A vector of channels of all lines before the next one: it is read from the second-level cache once.
    WithOutputs(h.out, [&](auto outputs) {
      constexpr int64_t kOutputs = outputs.value;
      const DepthwiseFunction sum = DepthwiseFunctionOf<kOutputs>(h.kernel, h.stride, h.dilation);
      for (int64_t next = 0; next < channels; next += kLanes) {
        const int64_t channel = std::max<int64_t>(0, std::min(next, channels - kLanes));  // the last vector overlaps
        const BlockBias<kLanes> bias(bias_, channel, std::min<int64_t>(kLanes, channels));
        for (int64_t line = begin; line < end; ++line) {
          const float* from = rows.data + (line - begin) * v.stride * rows.row_pitch;
          for (int64_t output = 0; output < h.out; output += kOutputs) {
            const int64_t first = std::min(output, h.out - kOutputs);  // the last one overlaps
            const float* pixels = from + first * h.stride * rows.pixel_pitch;
            const int64_t pixel = (image * v.out + line) * h.out + first;
            if (channels < kLanes) {
              FewChannels(formula, pixels, rows.row_pitch, kOutputs, bias.data(), pixel);
            } else {
              alignas(64) float sums[kOutputs * kLanes];
              sum(taps, pixels + channel, weight_ + channel, sums);
              finish_.Store<kLanes>(formula, sums, kOutputs, bias.data(), pixel, channel, kLanes);
            }
          }
        }
      }
    });
  }

  // f(a constant): neighbouring outputs that are computed together, of `width` in a row.
  template <class F>
  static void WithOutputs(int64_t width, const F& f) {
    if (width % 7 == 0) return f(std::integral_constant<int, 7>{});
    if (width >= 8) return f(std::integral_constant<int, 8>{});
    if (width >= 4) return f(std::integral_constant<int, 4>{});
    f(std::integral_constant<int, 1>{});
  }

  template <class F>
  void FewChannels(const F& formula, const float* from, int64_t row_pitch, int64_t width, const float* bias,
                   int64_t pixel) const {
    const Axis &v = rows_.vertical(), &h = rows_.horizontal();
    const int64_t channels = finish_.channels;
    for (int64_t o = 0; o < width; ++o) {
      alignas(64) float sums[kLanes] = {};
      const float* weight = weight_;
      for (int64_t ky = 0; ky < v.kernel; ++ky) {
        for (int64_t kx = 0; kx < h.kernel; ++kx, weight += channels) {
          const float* in = from + ky * v.dilation * row_pitch + (o * h.stride + kx * h.dilation) * channels;
          for (int64_t c = 0; c < channels; ++c) sums[c] += weight[c] * in[c];
        }
      }
      finish_.Store<kLanes>(formula, sums, 1, bias, pixel + o, 0, channels);
    }
  }

  PaddedRows<float> rows_;
  int64_t images_;
  const float* x_;
  const float* weight_;
  const float* bias_;
  Finish finish_;
};

}  // namespace npu::channels_last

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

namespace npu::channels_last {

template <class T>
class Depthwise {
 public:
  // `weight`: [kernel rows * kernel columns, channels]. `bias` may be null.
  Depthwise(const std::vector<Axis>& axes, int64_t images, const T* x, const float* weight, const float* bias,
            const Finish<T>& finish)
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
    finish_.activation.template WithFormula<float>([&](const auto& formula) {
      ParallelFor(images_ * pieces, 1, [&](int64_t begin, int64_t end) {
        for (int64_t unit = begin; unit < end; ++unit)
          RunLines(formula, unit / pieces, unit % pieces * v.out / pieces, (unit % pieces + 1) * v.out / pieces);
      });
    });
  }

 private:
  static constexpr int64_t kBlockBytes = 256 << 10;  // of rows that are read together
  static constexpr int64_t kTogether = 128;          // channels that are finished together
  static constexpr int64_t kLanes = simd::kLanes;

  template <class F>
  void RunLines(const F& formula, int64_t image, int64_t begin, int64_t end) const {
    static thread_local gemm::AlignedBuffer scratch;
    const Axis &v = rows_.vertical(), &h = rows_.horizontal();
    const int64_t channels = finish_.channels;
    const Rows<T> rows = rows_.Read(x_ + image * v.in * h.in * channels, begin, end, scratch);
    const DepthwiseTaps taps{v.kernel,
                             h.kernel,
                             v.dilation * rows.row_pitch,
                             h.dilation * rows.pixel_pitch,
                             h.stride * rows.pixel_pitch,
                             channels,
                             kTogether};
    WithOutputs(h.out, [&](auto outputs) {
      constexpr int64_t kOutputs = outputs.value;
      const DepthwiseFunction<T> sum = DepthwiseFunctionOf<kOutputs, T>(h.kernel, h.stride, h.dilation);
      for (int64_t line = begin; line < end; ++line) {
        const T* from = rows.data + (line - begin) * v.stride * rows.row_pitch;
        for (int64_t output = 0; output < h.out; output += kOutputs) {
          const int64_t first = std::min(output, h.out - kOutputs);  // the last one overlaps
          const T* pixels = from + first * h.stride * rows.pixel_pitch;
          const int64_t pixel = (image * v.out + line) * h.out + first;
          if (channels < kLanes) {
            FewChannels(formula, pixels, rows.row_pitch, kOutputs, pixel);
            continue;
          }
          // All channels, so that results are written one after the other.
          for (int64_t next = 0; next < channels; next += kTogether) {
            const int64_t channel = std::min(next, channels - kLanes);  // the last ones overlap
            const int64_t count = std::min(kTogether, channels - channel);
            alignas(64) float sums[kOutputs * kTogether];
            for (int64_t c = 0; c < count; c += kLanes) {
              const int64_t at = std::min(c, count - kLanes);
              sum(taps, pixels + channel + at, weight_ + channel + at, sums + at);
            }
            finish_.template Store<kTogether>(formula, sums, kOutputs, BiasOf(channel), pixel, channel, count);
          }
        }
      }
    });
  }

  const float* BiasOf(int64_t channel) const {
    static constexpr float kZeros[kTogether] = {};
    return bias_ != nullptr ? bias_ + channel : kZeros;
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
  void FewChannels(const F& formula, const T* from, int64_t row_pitch, int64_t width, int64_t pixel) const {
    const Axis &v = rows_.vertical(), &h = rows_.horizontal();
    const int64_t channels = finish_.channels;
    for (int64_t o = 0; o < width; ++o) {
      alignas(64) float sums[kLanes] = {};
      const float* weight = weight_;
      for (int64_t ky = 0; ky < v.kernel; ++ky) {
        for (int64_t kx = 0; kx < h.kernel; ++kx, weight += channels) {
          const T* in = from + ky * v.dilation * row_pitch + (o * h.stride + kx * h.dilation) * channels;
          for (int64_t c = 0; c < channels; ++c) sums[c] += weight[c] * ToFloat(in[c]);
        }
      }
      finish_.template Store<kLanes>(formula, sums, 1, BiasOf(0), pixel + o, 0, channels);
    }
  }

  PaddedRows<T> rows_;
  int64_t images_;
  const T* x_;
  const float* weight_;
  const float* bias_;
  Finish<T> finish_;
};

}  // namespace npu::channels_last

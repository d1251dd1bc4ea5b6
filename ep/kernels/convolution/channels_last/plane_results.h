// Results of a convolution with channels last that are written as planes: blocks of sums, which are in the first-level
// cache, are transposed.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/transposed_block.h"

namespace npu::channels_last {

struct PlaneResults {
  // Pixels whose sums are held: a part of a first-level cache.
  static constexpr int64_t kMost = 128;

  float* y;
  const float* residual;        // in the same order; may be null
  int64_t channels, positions;  // of an image

  // Of a channel of the pixel, numbered through all images.
  int64_t At(int64_t pixel, int64_t channel) const {
    return (pixel / positions * channels + channel) * positions + pixel % positions;
  }

  // `rows` rows of sums, of kWidth each, to the channels [channel, channel + count) of the pixels from `pixel` on;
  // `rows` is at most kMost, `formula` the activation's.
  template <int kWidth, class F>
  void Write(const F& formula, const float* sums, int64_t rows, const float* bias, int64_t pixel, int64_t channel,
             int64_t count) const {
    constexpr int64_t kLanes = simd::kLanes, kPitch = kMost + kLanes;  // not a part of a page apart
    alignas(64) float held[kLanes * kPitch];
    for (int64_t c = 0; c < count; c += kLanes) {
      simd::TransposeMatrix(sums + c, kWidth, rows, kLanes, held, kPitch, rows);
      for (int64_t i = 0; i < std::min(kLanes, count - c); ++i)
        WriteChannel(formula, held + i * kPitch, rows, bias[c + i], pixel, channel + c + i);
    }
  }

 private:
  template <class F>
  void WriteChannel(const F& formula, const float* sums, int64_t rows, float bias, int64_t pixel,
                    int64_t channel) const {
    while (rows > 0) {
      const int64_t some = std::min(rows, positions - pixel % positions), at = At(pixel, channel);
      float* to = y + at;
      if (residual == nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < some; ++i) to[i] = formula(sums[i] + bias);
      } else {
        const float* more = residual + at;
#pragma omp simd
        for (int64_t i = 0; i < some; ++i) to[i] = formula(sums[i] + bias + more[i]);
      }
      sums += some;
      pixel += some;
      rows -= some;
    }
  }
};

}  // namespace npu::channels_last

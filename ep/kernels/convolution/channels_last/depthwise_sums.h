// The sums of a depthwise convolution with channels last: of a vector of channels, for a few neighbouring outputs.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ep/kernels/float_vector.h"

namespace npu::channels_last {

// The taps that an output reads; distances in pixels.
struct DepthwiseTaps {
  int64_t rows, columns;
  int64_t stride, dilation;  // of the columns, from one output and from one tap to the next
  int64_t weight_pitch;      // in elements, to the weight of the next tap
  int64_t sums_pitch;        // in elements, to the sums of the next output
};

// The pixels that some outputs read: for each row of taps, from the first one's first on.
template <class T>
struct PixelsInside {
  const T* At(int64_t row, int64_t i) const { return first + row * row_pitch + i * pixel_pitch; }

  const T* first;
  int64_t row_pitch, pixel_pitch;
};
// Those that have padding among them, one by one.
template <class T>
struct PixelsListed {
  const T* At(int64_t row, int64_t i) const { return pixels[row * width + i]; }

  const T* const* pixels;
  int64_t width;
};

// A vector of sums of each output for the channels from `channel` on. P: PixelsInside or PixelsListed.
template <class P>
using DepthwiseFunction = void (*)(const DepthwiseTaps& taps, const P& pixels, int64_t channel, const float* weight,
                                   float* sums);

namespace depthwise {

using simd::Load;
using simd::LoadFloats;
using simd::Vec;

// Any kernel.
template <int kOutputs, class P>
void Sum(const DepthwiseTaps& taps, const P& pixels, int64_t channel, const float* weight, float* sums) {
  Vec sum[kOutputs];
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) sum[o] = Vec{};
  for (int64_t row = 0; row < taps.rows; ++row) {
    for (int64_t tap = 0; tap < taps.columns; ++tap, weight += taps.weight_pitch) {
      const Vec w = Load(weight);
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o)
        sum[o] += w * LoadFloats(pixels.At(row, o * taps.stride + tap * taps.dilation) + channel);
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) simd::Store(sums + o * taps.sums_pitch, sum[o]);
}

// A kernel of kColumns neighbouring taps in a row, and outputs kStride pixels apart: a pixel is read once for all
// outputs that it reaches.
template <int kOutputs, int kColumns, int kStride, class P>
void SumShared(const DepthwiseTaps& taps, const P& pixels, int64_t channel, const float* weight, float* sums) {
  Vec sum[kOutputs];
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) sum[o] = Vec{};
  for (int64_t row = 0; row < taps.rows; ++row) {
    Vec w[kColumns];
#pragma GCC unroll 8
    for (int tap = 0; tap < kColumns; ++tap, weight += taps.weight_pitch) w[tap] = Load(weight);
#pragma GCC unroll 32
    for (int i = 0; i < (kOutputs - 1) * kStride + kColumns; ++i) {
      const Vec x = LoadFloats(pixels.At(row, i) + channel);
#pragma GCC unroll 8
      for (int tap = 0; tap < kColumns; ++tap) {
        const int from_first = i - tap;
        if (from_first >= 0 && from_first % kStride == 0 && from_first / kStride < kOutputs)
          sum[from_first / kStride] += w[tap] * x;
      }
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) simd::Store(sums + o * taps.sums_pitch, sum[o]);
}

}  // namespace depthwise

template <int kOutputs, class P>
DepthwiseFunction<P> DepthwiseFunctionOf(const DepthwiseTaps& taps) {
  if (taps.dilation == 1 && taps.columns == 3 && taps.stride == 1) return &depthwise::SumShared<kOutputs, 3, 1, P>;
  if (taps.dilation == 1 && taps.columns == 3 && taps.stride == 2) return &depthwise::SumShared<kOutputs, 3, 2, P>;
  if (taps.dilation == 1 && taps.columns == 5 && taps.stride == 1) return &depthwise::SumShared<kOutputs, 5, 1, P>;
  if (taps.dilation == 1 && taps.columns == 5 && taps.stride == 2) return &depthwise::SumShared<kOutputs, 5, 2, P>;
  return &depthwise::Sum<kOutputs, P>;
}

// f(a constant): neighbouring outputs that are computed together, of `width` in a row.
template <class F>
void WithNeighbours(int64_t width, const F& f) {
  if (width % 7 == 0) return f(std::integral_constant<int, 7>{});
  if (width >= 8) return f(std::integral_constant<int, 8>{});
  if (width >= 4) return f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 1>{});
}

}  // namespace npu::channels_last

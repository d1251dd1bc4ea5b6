// The sums of a depthwise convolution with channels last: of a vector of channels, for a few neighbouring outputs.
#pragma once

#include <cstdint>

#include "ep/kernels/float_vector.h"

namespace npu::channels_last {

// What an output reads; distances in elements.
struct DepthwiseTaps {
  int64_t rows, columns;         // of the kernel
  int64_t row_pitch, tap_pitch;  // to the pixel of the next row of taps, and of the next tap in a row
  int64_t output_pitch;          // to the pixel of the next output
  int64_t weight_pitch;          // to the weight of the next tap
  int64_t sums_pitch;            // to the sums of the next output
};

// A vector of sums of each output from the pixels on that the first output reads.
template <class T>
using DepthwiseFunction = void (*)(const DepthwiseTaps& taps, const T* pixels, const float* weight, float* sums);

namespace depthwise {

using simd::Load;
using simd::LoadFloats;
using simd::Vec;

// Any kernel.
template <int kOutputs, class T>
void Sum(const DepthwiseTaps& taps, const T* pixels, const float* weight, float* sums) {
  Vec sum[kOutputs];
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) sum[o] = Vec{};
  for (int64_t row = 0; row < taps.rows; ++row, pixels += taps.row_pitch) {
    const T* in = pixels;
    for (int64_t tap = 0; tap < taps.columns; ++tap, in += taps.tap_pitch, weight += taps.weight_pitch) {
      const Vec w = Load(weight);
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o) sum[o] += w * LoadFloats(in + o * taps.output_pitch);
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) simd::Store(sums + o * taps.sums_pitch, sum[o]);
}

// A kernel of kColumns neighbouring taps in a row, and outputs kStride pixels apart: a pixel is read once for all
// outputs that it reaches.
template <int kOutputs, int kColumns, int kStride, class T>
void SumShared(const DepthwiseTaps& taps, const T* pixels, const float* weight, float* sums) {
  Vec sum[kOutputs];
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) sum[o] = Vec{};
  for (int64_t row = 0; row < taps.rows; ++row, pixels += taps.row_pitch) {
    Vec w[kColumns];
#pragma GCC unroll 8
    for (int tap = 0; tap < kColumns; ++tap, weight += taps.weight_pitch) w[tap] = Load(weight);
    const T* pixel = pixels;
#pragma GCC unroll 32
    for (int i = 0; i < (kOutputs - 1) * kStride + kColumns; ++i, pixel += taps.tap_pitch) {
      const Vec x = LoadFloats(pixel);
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

// `stride`: pixels from one output to the next; `dilation`: from one tap to the next.
template <int kOutputs, class T>
DepthwiseFunction<T> DepthwiseFunctionOf(int64_t columns, int64_t stride, int64_t dilation) {
  if (dilation == 1 && columns == 3 && stride == 1) return &depthwise::SumShared<kOutputs, 3, 1, T>;
  if (dilation == 1 && columns == 3 && stride == 2) return &depthwise::SumShared<kOutputs, 3, 2, T>;
  if (dilation == 1 && columns == 5 && stride == 1) return &depthwise::SumShared<kOutputs, 5, 1, T>;
  if (dilation == 1 && columns == 5 && stride == 2) return &depthwise::SumShared<kOutputs, 5, 2, T>;
  return &depthwise::Sum<kOutputs, T>;
}

}  // namespace npu::channels_last

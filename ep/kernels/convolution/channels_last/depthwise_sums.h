// The sums of a depthwise convolution with channels last: of a vector of channels, for a few neighbouring outputs.
#pragma once

#include <cstdint>

#include "ep/kernels/gemm/vector.h"

namespace npu::channels_last {

// What an output reads; distances in elements.
struct DepthwiseTaps {
  int64_t rows, columns;         // of the kernel
  int64_t row_pitch, tap_pitch;  // to the pixel of the next row of taps, and of the next tap in a row
  int64_t output_pitch;          // to the pixel of the next output
  int64_t weight_pitch;          // to the weight of the next tap
};

// sums[outputs][kLanes] from the pixels on that the first output reads.
using DepthwiseFunction = void (*)(const DepthwiseTaps& taps, const float* pixels, const float* weight, float* sums);

namespace depthwise {

using Unaligned __attribute__((vector_size(gemm::kLanes * 4), aligned(4), may_alias)) = float;

inline Unaligned Load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }

// Any kernel.
template <int kOutputs>
void Sum(const DepthwiseTaps& taps, const float* pixels, const float* weight, float* sums) {
  Unaligned sum[kOutputs];
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) sum[o] = Unaligned{};
  for (int64_t row = 0; row < taps.rows; ++row, pixels += taps.row_pitch) {
    const float* in = pixels;
    for (int64_t tap = 0; tap < taps.columns; ++tap, in += taps.tap_pitch, weight += taps.weight_pitch) {
      const Unaligned w = Load(weight);
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o) sum[o] += w * Load(in + o * taps.output_pitch);
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) *reinterpret_cast<Unaligned*>(sums + o * gemm::kLanes) = sum[o];
}

// A kernel of kColumns neighbouring taps in a row, and outputs kStride pixels apart: a pixel is read once for all
// outputs that it reaches.
template <int kOutputs, int kColumns, int kStride>
void SumShared(const DepthwiseTaps& taps, const float* pixels, const float* weight, float* sums) {
  Unaligned sum[kOutputs];
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) sum[o] = Unaligned{};
  for (int64_t row = 0; row < taps.rows; ++row, pixels += taps.row_pitch) {
    Unaligned w[kColumns];
#pragma GCC unroll 8
    for (int tap = 0; tap < kColumns; ++tap, weight += taps.weight_pitch) w[tap] = Load(weight);
    const float* pixel = pixels;
#pragma GCC unroll 32
    for (int i = 0; i < (kOutputs - 1) * kStride + kColumns; ++i, pixel += taps.tap_pitch) {
      const Unaligned x = Load(pixel);
#pragma GCC unroll 8
      for (int tap = 0; tap < kColumns; ++tap) {
        const int from_first = i - tap;
        if (from_first >= 0 && from_first % kStride == 0 && from_first / kStride < kOutputs)
          sum[from_first / kStride] += w[tap] * x;
      }
    }
  }
#pragma GCC unroll 8
  for (int o = 0; o < kOutputs; ++o) *reinterpret_cast<Unaligned*>(sums + o * gemm::kLanes) = sum[o];
}

}  // namespace depthwise

// `stride`: pixels from one output to the next; `dilation`: from one tap to the next.
template <int kOutputs>
DepthwiseFunction DepthwiseFunctionOf(int64_t columns, int64_t stride, int64_t dilation) {
  if (dilation == 1 && columns == 3 && stride == 1) return &depthwise::SumShared<kOutputs, 3, 1>;
  if (dilation == 1 && columns == 3 && stride == 2) return &depthwise::SumShared<kOutputs, 3, 2>;
  if (dilation == 1 && columns == 5 && stride == 1) return &depthwise::SumShared<kOutputs, 5, 1>;
  if (dilation == 1 && columns == 5 && stride == 2) return &depthwise::SumShared<kOutputs, 5, 2>;
  return &depthwise::Sum<kOutputs>;
}

}  // namespace npu::channels_last

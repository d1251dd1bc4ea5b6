// The end of a convolution of integers: sums of some channels at neighbouring positions become a part of the planes of
// its output, as int32 or quantised again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ep/kernels/convolution/integer/byte_planes.h"
#include "ep/kernels/gemm/aligned_buffer.h"
#include "ep/kernels/quantization/requantize.h"
#include "ep/kernels/transposed_block.h"

namespace npu::convolution {

struct IntegerFinish {
  const Requantization* quantize;  // null where y is the sums
  TensorView y;                    // [images, channels, outputs]
  int64_t channels, outputs;

  // Bytes of the results of `rows` positions and `count` channels.
  int64_t Bytes(int64_t rows, int64_t count) const { return rows * count * (quantize != nullptr ? 1 : 4); }

  // Rows of sums, `pitch` apart, for the channels [channel, channel + count). What is added wraps.
  void Convert(const int32_t* sums, int64_t pitch, int64_t rows, const uint32_t* added, int64_t channel, int64_t count,
               void* results) const {
    if (quantize != nullptr) return quantize->Rows(sums, pitch, rows, added, channel, count, results);
    auto* to = static_cast<uint32_t*>(results);
    for (int64_t r = 0; r < rows; ++r, sums += pitch, to += count)
      for (int64_t j = 0; j < count; ++j) to[j] = static_cast<uint32_t>(sums[j]) + added[j];
  }

  // Results of the positions from `first` on, row by row, to the planes of `image`.
  void Store(const void* results, int64_t rows, int64_t image, int64_t first, int64_t channel, int64_t count) const {
    const int64_t at = (image * channels + channel) * outputs + first;
    if (quantize != nullptr) {
      TransposeBytes(static_cast<const uint8_t*>(results), rows, count, count, 0, y.as<uint8_t>() + at, outputs);
      return;
    }
    const float* from = static_cast<const float*>(results);  // moved, never computed with
    float* to = y.as<float>() + at;
    simd::TransposeMatrix(from, count, rows, count, to, outputs, rows);
  }
};

}  // namespace npu::convolution

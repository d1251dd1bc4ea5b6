// A row of int8 with a scale of its own, as it travels between ranks.
#pragma once

#include <bit>
#include <cstdint>

#include "ep/kernels/quantization/extremes.h"
#include "ep/kernels/quantization/quantize.h"
#include "ep/kernels/quantization/smooth_rows.h"

namespace npu {

// to = row `row` of `values` over max |v| / 127, which is returned.
inline float QuantiseRow(SmoothRows& values, int64_t row, int64_t width, void* to) {
  uint32_t magnitude = 0;
  ForEachBlock(width,
               [&](int64_t at, int64_t n) { magnitude = MaxMagnitudeBits(values.Load(row, at, n), n, magnitude); });
  const float scale = std::bit_cast<float>(magnitude) / 127.0f, zero = 0.0f;
  ForEachBlock(width, [&](int64_t at, int64_t n) {
    QuantizeBlock(QuantizeBy::kDivisionRoundedAtEnd, QuantizedType::kInt8, values.Load(row, at, n), {&scale, false},
                  {&zero, false}, static_cast<int8_t*>(to) + at, n);
  });
  return scale;
}

}  // namespace npu

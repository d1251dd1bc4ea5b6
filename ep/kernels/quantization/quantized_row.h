// Rows of integers with a scale of their own.
#pragma once

#include <bit>
#include <cstdint>

#include "ep/kernels/quantization/extremes.h"
#include "ep/kernels/quantization/quantize.h"
#include "ep/kernels/quantization/smooth_rows.h"

namespace npu {

// max |v| / top over a row.
inline float ScaleOfRow(SmoothRows& values, int64_t row, int64_t width, float top) {
  uint32_t magnitude = 0;
  ForEachBlock(width,
               [&](int64_t at, int64_t n) { magnitude = MaxMagnitudeBits(values.Load(row, at, n), n, magnitude); });
  return std::bit_cast<float>(magnitude) / top;
}

// to = a row as int8 over its scale, which is returned.
inline float QuantizeRow(SmoothRows& values, int64_t row, int64_t width, void* to) {
  const float scale = ScaleOfRow(values, row, width, 127.0f), zero = 0.0f;
  ForEachBlock(width, [&](int64_t at, int64_t n) {
    QuantizeBlock(QuantizeBy::kDivisionRoundedAtEnd, QuantizedType::kInt8, values.Load(row, at, n), {&scale, false},
                  {&zero, false}, static_cast<int8_t*>(to) + at, n);
  });
  return scale;
}

}  // namespace npu

// Rows of floats times one row of smooth scales.
#pragma once

#include <cstdint>

#include "ep/kernels/quantization/float_block.h"

namespace npu {

class SmoothRows {
 public:
  // Without `smooth` the values are those of `input`; both have `columns` columns.
  SmoothRows(const TensorView& input, const TensorView& smooth, int64_t columns, int64_t smooth_row)
      : input_(input), smooth_(smooth), columns_(columns), smooth_at_(smooth_row * columns) {}

  // Up to kRowBlock values of a row, valid until the next Load.
  const float* Load(int64_t row, int64_t column, int64_t count) {
    const float* x = values_.Load(input_, row * columns_ + column, count);
    if (!smooth_) return x;
    const float* s = scales_.Load(smooth_, smooth_at_ + column, count);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) product_[i] = x[i] * s[i];
    return product_;
  }

 private:
  const TensorView &input_, &smooth_;
  int64_t columns_, smooth_at_;
  FloatBlock values_, scales_;
  alignas(64) float product_[kRowBlock];
};

}  // namespace npu

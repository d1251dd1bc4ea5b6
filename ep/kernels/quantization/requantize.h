// Sums of integers as 8-bit integers again.
#pragma once

#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu {

// The result of an operator on quantised operands: element = round_half_even(sum * a_scale * b_scale / y_scale) + zero
// point, saturated, in float32. Read in a launch.
class Requantization {
 public:
  // The inputs of the operator: scales of a and y with one element, of b with one or one for each of `lines`.
  Requantization(const char* op, const TensorView& a_scale, const TensorView& b_scale, const TensorView& y_scale,
                 const TensorView& y_zero_point, int64_t lines);

  void Load();
  // `rows` rows of n sums, those of the lines from `line` on; `added` has as many values, or is null. Rows of the sums
  // are `pitch` elements apart, those of the result n.
  void Rows(const int32_t* sums, int64_t pitch, int64_t rows, const uint32_t* added, int64_t line, int64_t n,
            void* out) const;
  DType dtype() const { return y_zero_.dtype; }

 private:
  TensorView a_scale_, b_scale_, y_scale_, y_zero_;
  int64_t lines_;
  std::vector<float> scales_;  // of each line
  float zero_ = 0;
};

}  // namespace npu

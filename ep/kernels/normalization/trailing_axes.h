// Operators that normalise over the trailing axes which a weight covers.
#pragma once

#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// Checks that `weight` has the trailing dimensions of x, at least one; returns the number of axes of x that precede
// them.
inline int LeadingAxes(const char* op, const char* weight_name, const Shape& weight, const char* x_name,
                       const Shape& x) {
  const int leading = x.rank() - weight.rank();
  bool trailing = weight.rank() >= 1 && leading >= 0;
  for (int i = 0; trailing && i < weight.rank(); ++i) trailing = x[leading + i] == weight[i];
  NPU_OP_CHECK(op, trailing, "expected ", weight_name, " to have the trailing dimensions of ", x_name, " ", x, ", got ",
               weight);
  return leading;
}

// The shape of a statistic per row: x's, with 1 for every normalised axis.
inline Shape RowShape(const Shape& x, int leading) {
  Shape shape = x;
  for (int i = leading; i < x.rank(); ++i) shape[i] = 1;
  return shape;
}

}  // namespace npu

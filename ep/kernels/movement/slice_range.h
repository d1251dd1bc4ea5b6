// NumPy's rules for start:end:step over a dimension, for all int64 values.
#pragma once

#include <algorithm>
#include <limits>

#include "ep/kernels/op_check.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

struct SliceRange {
  int64_t start, step, count;
};

inline SliceRange ResolveSliceRange(const char* op, int64_t start, int64_t end, int64_t step, int64_t dim) {
  NPU_OP_CHECK(op, step != 0, "expected steps that are not 0, got 0");
  // -INT64_MIN overflows; a step that long takes one element either way.
  step = std::max(step, -std::numeric_limits<int64_t>::max());
  if (start < 0) start += dim;
  if (end < 0) end += dim;
  if (step > 0) {
    start = std::clamp<int64_t>(start, 0, dim);
    end = std::clamp<int64_t>(end, 0, dim);
    return {start, step, end > start ? (end - start - 1) / step + 1 : 0};
  }
  start = std::clamp<int64_t>(start, -1, dim - 1);
  end = std::clamp<int64_t>(end, -1, dim - 1);
  return {start, step, start > end ? (start - end - 1) / -step + 1 : 0};
}

}  // namespace npu

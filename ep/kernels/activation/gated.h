// Gated linear units: one axis of x holds two halves, which are combined elementwise.
#pragma once

#include <algorithm>

#include "ep/kernels/op_check.h"
#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// x viewed as [outer, 2, half] and the results as [outer, half].
struct Halves {
  int64_t outer = 0, half = 0;
  Shape result;
};

inline Halves SplitHalves(const char* op, const Shape& x, int64_t dim) {
  const int rank = x.rank();
  NPU_OP_CHECK(op, rank >= 1, "expected self of rank >= 1, got a scalar");
  NPU_OP_CHECK(op, dim >= -rank && dim < rank, "expected dim in [", -rank, ", ", rank - 1, "], got ", dim);
  const int axis = static_cast<int>(dim < 0 ? dim + rank : dim);
  NPU_OP_CHECK(op, x[axis] % 2 == 0, "expected an even size of axis ", dim, ", got ", x[axis]);
  Halves h;
  h.result = x;
  h.result[axis] = x[axis] / 2;
  h.outer = h.result.Elements(0, axis);
  h.half = h.result.Elements(axis, rank);
  return h;
}

// Runs f(first, second, result, count) over the blocks of all rows on the intra-op pool: the offsets, in the two halves
// and in the result, of blocks of `count` elements.
template <class F>
void ForEachGatedBlock(int64_t outer, int64_t half, F f) {
  ParallelFor(outer * half, kSerialElements, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t row = begin / half, at = begin % half;
      const int64_t count = std::min({end - begin, half - at, kRowBlock});
      f(2 * row * half + at, (2 * row + 1) * half + at, begin, count);
      begin += count;
    }
  });
}

}  // namespace npu

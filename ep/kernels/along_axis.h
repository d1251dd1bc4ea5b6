// Operators that treat each line of a tensor along one axis by itself.
#pragma once

#include <cstdint>

#include "ep/kernels/row_block.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

// The lines of a shape: `lines` of `n` elements that are `stride` apart.
struct Lines {
  int64_t lines, n, stride;

  static Lines AlongAxis(const Shape& shape, int axis) {
    const int64_t inner = shape.Elements(axis + 1, shape.rank());
    return {shape.Elements(0, axis) * inner, shape[axis], inner};
  }
  // Where a line begins.
  int64_t Start(int64_t line) const { return line / stride * n * stride + line % stride; }

  // f(start) for every line, on the pool.
  template <class F>
  void ForEach(const F& f) const {
    ParallelFor(lines, RowGrain(n), [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) f(Start(line));
    });
  }
};

}  // namespace npu

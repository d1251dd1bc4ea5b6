// A running value along one axis: shared by CumSum, CumProd and the running extremes.
#pragma once

#include <algorithm>

#include "ep/kernels/reduce/axis.h"
#include "ep/kernels/row_block.h"

namespace npu {

// Calls step(state, i, offset) for the elements of each line along the axis in order, backwards if `reverse`: i is the
// element's position in its line, offset its position in the tensor. Each line has its own state, initialised to
// `first`. Adjacent lines advance together, so that memory is read in order.
template <class State, class Step>
void ScanLines(const AxisView& view, bool reverse, const State& first, const Step& step) {
  const int64_t blocks = (view.inner + kRowBlock - 1) / kRowBlock;
  const int64_t start = reverse ? (view.n - 1) * view.inner : 0;
  const int64_t stride = reverse ? -view.inner : view.inner;
  ParallelFor(view.outer * blocks, RowGrain(view.n * std::min(view.inner, kRowBlock)), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t column = b % blocks * kRowBlock, count = std::min(kRowBlock, view.inner - column);
      int64_t offset = b / blocks * view.n * view.inner + start + column;
      if (count == 1) {  // the state stays in registers
        State state = first;
        for (int64_t i = 0; i < view.n; ++i, offset += stride) step(state, i, offset);
        continue;
      }
      State states[kRowBlock];
      std::fill(states, states + count, first);
      for (int64_t i = 0; i < view.n; ++i, offset += stride)
        for (int64_t j = 0; j < count; ++j) step(states[j], i, offset + j);
    }
  });
}

}  // namespace npu

// Reductions that look at their inputs more than once: the inputs of one output, as runs of neighbours.
#pragma once

#include <cstdint>

#include "ep/kernels/reduce/plan.h"

namespace npu {

// f(offset of the first, count) for all inputs of output `i`.
template <class F>
void ForEachRun(const ReducePlan& plan, int64_t i, const F& f) {
  if (plan.inputs_per_output == 0) return;
  const int64_t base = plan.row_kept ? plan.kept.Offset(i / plan.row) + i % plan.row : plan.kept.Offset(i);
  const int64_t count = plan.row_kept ? 1 : plan.row;
  for (int64_t k = 0; k < plan.folded.total; ++k) f(base + plan.folded.Offset(k), count);
}

}  // namespace npu

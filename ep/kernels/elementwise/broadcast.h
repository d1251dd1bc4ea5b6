// NumPy broadcasting as rows: N inputs against one dense output. Along a row each input either moves
// with the output (step 1) or stands still (step 0), so that equal shapes are one long row, a scalar
// operand is one row with a standing operand, and everything else is an odometer over rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "ep/runtime/kernel_api.h"

namespace npu {

template <int N>
struct BroadcastPlan {
  int64_t total = 1;  // elements of the output
  int64_t row = 1;    // elements of a row
  int outer_rank = 0;
  std::array<int64_t, N> step{};  // along a row
  std::array<int64_t, Shape::kMaxRank> outer_dims{};
  std::array<std::array<int64_t, N>, Shape::kMaxRank> outer_strides{};
};

// `out` is the broadcast shape of the inputs. Neighbouring dimensions that every input walks alike
// become one.
template <int N>
BroadcastPlan<N> PlanBroadcast(const Shape& out, const std::array<Shape, N>& inputs) {
  BroadcastPlan<N> plan;
  plan.total = out.Elements();
  if (plan.total == 0) return plan;

  std::array<int64_t, Shape::kMaxRank> dims{};  // innermost first
  std::array<std::array<int64_t, N>, Shape::kMaxRank> strides{};
  int rank = 0;
  std::array<int64_t, N> dense;  // stride of the next dimension of each input
  dense.fill(1);
  for (int from_end = 1; from_end <= out.rank(); ++from_end) {
    const int64_t dim = out[out.rank() - from_end];
    std::array<int64_t, N> stride{};
    for (int k = 0; k < N; ++k) {
      const int axis = inputs[k].rank() - from_end;
      if (axis >= 0 && inputs[k][axis] != 1) {
        stride[k] = dense[k];
        dense[k] *= dim;
      }
    }
    if (dim == 1) continue;
    bool mergeable = rank > 0;
    for (int k = 0; k < N && mergeable; ++k) mergeable = stride[k] == strides[rank - 1][k] * dims[rank - 1];
    if (mergeable) {
      dims[rank - 1] *= dim;
    } else {
      dims[rank] = dim;
      strides[rank++] = stride;
    }
  }
  if (rank == 0) return plan;
  plan.row = dims[0];
  plan.step = strides[0];
  plan.outer_rank = rank - 1;
  for (int i = 1; i < rank; ++i) {
    plan.outer_dims[i - 1] = dims[i];
    plan.outer_strides[i - 1] = strides[i];
  }
  return plan;
}

// Calls f(out_offset, in_offsets, count) for the pieces of rows that make up output elements [begin, end).
template <int N, class F>
void ForEachRow(const BroadcastPlan<N>& plan, int64_t begin, int64_t end, const F& f) {
  if (begin >= end) return;
  int64_t row = begin / plan.row;
  int64_t column = begin % plan.row;
  std::array<int64_t, Shape::kMaxRank> index{};
  std::array<int64_t, N> base{};
  for (int d = 0; d < plan.outer_rank; ++d) {
    index[d] = row % plan.outer_dims[d];
    row /= plan.outer_dims[d];
    for (int k = 0; k < N; ++k) base[k] += index[d] * plan.outer_strides[d][k];
  }
  while (true) {
    const int64_t count = std::min(plan.row - column, end - begin);
    std::array<int64_t, N> offset;
    for (int k = 0; k < N; ++k) offset[k] = base[k] + column * plan.step[k];
    f(begin, offset, count);
    begin += count;
    if (begin >= end) return;
    column = 0;
    for (int d = 0; d < plan.outer_rank; ++d) {
      for (int k = 0; k < N; ++k) base[k] += plan.outer_strides[d][k];
      if (++index[d] < plan.outer_dims[d]) break;
      for (int k = 0; k < N; ++k) base[k] -= plan.outer_strides[d][k] * plan.outer_dims[d];
      index[d] = 0;
    }
  }
}

}  // namespace npu

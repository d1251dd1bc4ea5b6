// A reduction as strides: which dimensions of the input stay and which are folded, with neighbours of one
// kind merged.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ep/runtime/kernel_api.h"

namespace npu {

struct ReducePlan {
  struct Walk {
    int rank = 0;
    int64_t total = 1;
    std::array<int64_t, Shape::kMaxRank> dims{}, strides{};  // outermost first

    // The input's offset of position i of the walk.
    int64_t Offset(int64_t i) const {
      int64_t offset = 0;
      for (int d = rank - 1; d >= 0; --d) {
        offset += i % dims[d] * strides[d];
        i /= dims[d];
      }
      return offset;
    }
    void Push(int64_t dim, int64_t stride);
  };
  Walk kept, folded;      // without the row
  bool row_kept = false;  // whether the innermost, dense row stays or is folded
  int64_t row = 1;
  int64_t outputs = 1, inputs_per_output = 1;
};

// `reduced` has bit d set when dimension d is folded.
ReducePlan PlanReduce(const Shape& shape, uint32_t reduced);

// The output's shape.
Shape ReducedShape(const Shape& shape, uint32_t reduced, bool keep_dims);

// The dimensions that `axes` names, as bits; all of them when it is empty, unless `noop_when_empty`.
uint32_t ReducedAxes(const char* op, const std::vector<int64_t>& axes, int rank, bool noop_when_empty);

}  // namespace npu

// A reduction as strides: which dimensions of the input are kept and which are folded, with adjacent ones of the same
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

    // The input offset of position i of the walk.
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
  bool row_kept = false;  // whether the innermost, dense row is kept or folded
  int64_t row = 1;
  int64_t outputs = 1, inputs_per_output = 1;
};

// Bit d of `reduced` is set if dimension d is folded.
ReducePlan PlanReduce(const Shape& shape, uint32_t reduced);

// The output's shape.
Shape ReducedShape(const Shape& shape, uint32_t reduced, bool keep_dims);

// The dimensions in `axes`, as bits; if it is empty, all of them, or none with `noop_when_empty`.
uint32_t ReducedAxes(const char* op, const std::vector<int64_t>& axes, int rank, bool noop_when_empty);

}  // namespace npu

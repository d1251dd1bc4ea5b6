// A dense output from a strided view of an input: what Transpose, Slice and Expand are.
#pragma once

#include <array>
#include <cstdint>

#include "ep/runtime/kernel_api.h"

namespace npu {

struct StridedView {
  int64_t total = 1;                               // elements of the output
  int rank = 0;                                    // after neighbouring dimensions that are one walk have been merged
  std::array<int64_t, Shape::kMaxRank> dims{};     // of the output, outermost first
  std::array<int64_t, Shape::kMaxRank> strides{};  // of the input, in elements; 0 repeats, negative runs backwards
};

StridedView MakeStridedView(const Shape& dims, const std::array<int64_t, Shape::kMaxRank>& strides);

// Row-major strides of a dense tensor.
std::array<int64_t, Shape::kMaxRank> DenseStrides(const Shape& shape);

// Enqueues dst[i] = src[view(i)] for elements of `size` bytes, 1, 2, 4 or 8. `op` has static storage.
void LaunchStridedCopy(OpContext& ctx, const char* op, const StridedView& view, int size, const void* src, void* dst);

}  // namespace npu

// Copies between any two layouts of the same elements: what views of tensors need, and Transpose, Slice and Expand are.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ep/runtime/stream.h"
#include "ep/runtime/tensor.h"

namespace npu {

// Both sides' walk over one shape, with neighbouring dimensions merged, in the order of the written addresses. Strides
// are in elements; 0 repeats, negative runs backwards.
struct StridedPair {
  int64_t elements = 0;
  int rank = 0;
  std::array<int64_t, Shape::kMaxRank> dims;
  std::array<int64_t, Shape::kMaxRank> to;
  std::array<int64_t, Shape::kMaxRank> from;
};

StridedPair MakeStridedPair(std::span<const int64_t> dims, std::span<const int64_t> to, std::span<const int64_t> from);
// A dense tensor of `shape` from a view of that shape.
StridedPair MakeStridedPair(const Shape& shape, const std::array<int64_t, Shape::kMaxRank>& from);

// Row-major strides of a dense tensor.
std::array<int64_t, Shape::kMaxRank> DenseStrides(const Shape& shape);

// Enqueues to[i] = from[i] for elements of 1, 2, 4, 8 or 16 bytes. The two may not overlap, unless they are one and the
// same. `op` has static storage.
void LaunchStridedCopy(Stream& stream, const char* op, const StridedPair& pair, size_t element_bytes, void* to,
                       const void* from);

}  // namespace npu

// Copies between any two layouts of the same elements: what views of tensors need and dense kernels do not do.
#pragma once

#include <cstdint>
#include <span>

#include "ep/runtime/stream.h"
#include "ep/runtime/tensor.h"

namespace npu {

// Both sides' walk over one shape, with neighbouring dimensions merged. Strides are in elements.
struct StridedPair {
  int64_t elements = 0;
  int rank = 0;
  int64_t dims[Shape::kMaxRank];
  int64_t to[Shape::kMaxRank];
  int64_t from[Shape::kMaxRank];
};

StridedPair MakeStridedPair(std::span<const int64_t> dims, std::span<const int64_t> to, std::span<const int64_t> from);

// to[i] = from[i] for elements of 1, 2, 4, 8 or 16 bytes. The two may not overlap, unless they are one and the same.
void LaunchStridedCopy(Stream& stream, const StridedPair& pair, size_t element_bytes, void* to, const void* from);

}  // namespace npu

// Copies between layouts (ep/runtime/strided_copy.h), compiled for the level of this library.
#pragma once

#include "ep/runtime/kernel_api.h"
#include "ep/runtime/strided_copy.h"

namespace npu {

// Enqueues a dense `to` of `shape` from elements of `size` bytes that `strides`, in elements, walk from `from` on. `op`
// has static storage.
void LaunchStridedCopy(OpContext& ctx, const char* op, const Shape& shape,
                       const std::array<int64_t, Shape::kMaxRank>& strides, size_t size, void* to, const void* from);

}  // namespace npu

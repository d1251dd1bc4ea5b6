// For kernels that compute a result whether or not the node names it.
#pragma once

#include <algorithm>

#include "ep/runtime/kernel_api.h"

namespace npu {

// Scratch memory as a tensor.
inline TensorView RoomFor(OpContext& ctx, DType dtype, const Shape& shape) {
  return {ctx.Workspace(std::max<size_t>(BytesFor(dtype, shape.Elements()), 1)), dtype, true, shape};
}

// Output i, or scratch memory of its shape if the caller did not request it.
inline TensorView OutputOrRoom(OpContext& ctx, size_t i, DType dtype, const Shape& shape) {
  const TensorView view = ctx.Output(i, dtype, shape);
  return view ? view : RoomFor(ctx, dtype, shape);
}

}  // namespace npu

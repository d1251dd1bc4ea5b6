// For kernels that compute a result whether or not the node names it.
#pragma once

#include <algorithm>

#include "ep/runtime/kernel_api.h"

namespace npu {

// Output i, or scratch memory of its shape if the caller did not request it.
inline TensorView OutputOrRoom(OpContext& ctx, size_t i, DType dtype, const Shape& shape) {
  const TensorView view = ctx.Output(i, dtype, shape);
  if (view) return view;
  return {ctx.Workspace(std::max<size_t>(BytesFor(dtype, shape.Elements()), 1)), dtype, true, shape};
}

}  // namespace npu

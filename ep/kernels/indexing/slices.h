// Index tuples that name slices of a tensor by its leading axes.
#pragma once

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"

namespace npu {

// Checks every tuple of indices into `dims` and resolves it to a slice number. Returns whether the numbers are strictly
// increasing, so that no two tuples name the same slice.
template <class Index>
bool ResolveSlices(const char* op, const Index* indices, int64_t tuples, const Shape& dims, int64_t* slices) {
  bool increasing = true;
  int64_t previous = -1;
  for (int64_t t = 0; t < tuples; ++t) {
    int64_t slice = 0;
    for (int axis = 0; axis < dims.rank(); ++axis) {
      const int64_t index = ReadOnce(indices++);
      NPU_OP_CHECK(op, index >= 0 && index < dims[axis], "expected indices in [0, ", dims[axis], ") for axis ", axis,
                   ", got ", index);
      slice = slice * dims[axis] + index;
    }
    slices[t] = slice;
    increasing &= slice > previous;
    previous = slice;
  }
  return increasing;
}

// The tuples of a view of int32 or int64.
inline bool ResolveSlices(const char* op, const TensorView& indices, int64_t tuples, const Shape& dims,
                          int64_t* slices) {
  if (indices.dtype == DType::kInt32) return ResolveSlices(op, indices.as<const int32_t>(), tuples, dims, slices);
  return ResolveSlices(op, indices.as<const int64_t>(), tuples, dims, slices);
}

}  // namespace npu

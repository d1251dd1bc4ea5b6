// Indices from a model are device data: their values are first available to the launched kernel, which checks them
// before reading or writing anything through them.
#pragma once

#include <cstdint>

#include "ep/kernels/checked_numbers.h"
#include "ep/kernels/op_check.h"

namespace npu {

// Resolves indices[at] in a dimension of n elements, counting negative ones from the end.
template <class Index>
inline int64_t CheckedIndex(const char* op, const Index* indices, int64_t at, int64_t n) {
  const int64_t index = CheckedNumbers(op, "an index", indices, -n, n)[at];
  return index < 0 ? index + n : index;
}

// Calls f(Index{}) with the C++ type of an indices tensor.
template <class F>
decltype(auto) DispatchIndices(const char* op, const TensorView& indices, const F& f) {
  if (indices.dtype == DType::kInt32) return f(int32_t{});
  NPU_OP_CHECK(op, indices.dtype == DType::kInt64, "expected indices of int32 or int64, got ", NameOf(indices.dtype));
  return f(int64_t{});
}

inline void CheckSameType(const char* op, const TensorView& data, const TensorView& updates) {
  NPU_OP_CHECK(op, data.dtype == updates.dtype, "expected updates of the data's type ", NameOf(data.dtype), ", got ",
               NameOf(updates.dtype));
}

}  // namespace npu

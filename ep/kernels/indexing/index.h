// Indices from a model are device data: their values are first available to the launched kernel, which checks them
// before reading or writing anything through them.
#pragma once

#include <cstdint>

#include "ep/runtime/kernel_api.h"

namespace npu {

// Resolves `index` in a dimension of n elements, counting negative ones from the end. `at` is its position in the
// indices tensor, for the error.
inline int64_t CheckedIndex(const char* op, int64_t index, int64_t n, int64_t at) {
  NPU_CHECK(index >= -n && index < n, "[", op, "] expected an index in [", -n, ", ", n, "), got ", index, " at ", at);
  return index < 0 ? index + n : index;
}

// Calls f(Index{}) with the C++ type of an indices tensor.
template <class F>
decltype(auto) DispatchIndices(const char* op, const TensorView& indices, const F& f) {
  if (indices.dtype == DType::kInt32) return f(int32_t{});
  NPU_CHECK(indices.dtype == DType::kInt64, "[", op, "] expected indices of int32 or int64, got ",
            NameOf(indices.dtype));
  return f(int64_t{});
}

inline void CheckSameType(const char* op, const TensorView& data, const TensorView& updates) {
  NPU_CHECK(data.dtype == updates.dtype, "[", op, "] expected updates of the data's type ", NameOf(data.dtype),
            ", got ", NameOf(updates.dtype));
}

}  // namespace npu

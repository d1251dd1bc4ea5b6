// Single elements to and from the type they are computed in.
#pragma once

#include "ep/kernels/elementwise/types.h"

namespace npu {

using FixedWidthTypes = Types<float, Float16, BFloat16, double, int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t,
                              uint32_t, uint64_t, Truth>;

template <class T>
ComputeType<T> Upcast(T value) {
  if constexpr (kIsHalf<T>) {
    return ToFloat(value);
  } else {
    return value;
  }
}

template <class T>
T Rounded(ComputeType<T> value) {
  if constexpr (kIsHalf<T>) {
    return FromFloat<T>(value);
  } else {
    return value;
  }
}

// What sums that are kept for another kernel are stored as.
inline DType ComputeDType(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 ? DType::kFloat32 : dtype;
}

}  // namespace npu

// The 8-bit integers of quantised operands.
#pragma once

#include "ep/runtime/kernel_api.h"

namespace npu {

inline constexpr DTypeSet kByteTypes{DType::kInt8, DType::kUInt8};

// Element i of a tensor of one of these types. In a launch.
inline int32_t ByteAt(const TensorView& view, int64_t i) {
  return view.dtype == DType::kInt8 ? view.as<const int8_t>()[i] : view.as<const uint8_t>()[i];
}

}  // namespace npu

// The float types of operators as ONNX defined them before it had bfloat16.
#pragma once

#include "ep/runtime/dtype.h"

namespace npu {

inline constexpr DTypeSet kEarlyFloats{DType::kFloat32, DType::kFloat16, DType::kFloat64};

}  // namespace npu

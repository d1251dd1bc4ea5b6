// Rounding of float32 values to float16 where a step of a computation is rounded but goes on in float32.
#pragma once

#include "ep/kernels/convert.h"

namespace npu {

// `count` is at most kMost.
template <int64_t kMost>
void RoundToFloat16(float* values, int64_t count) {
  alignas(64) Float16 rounded[kMost];
  FromFloat(values, rounded, count);
  ToFloat(rounded, values, count);
}

}  // namespace npu

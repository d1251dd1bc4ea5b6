// The 8-bit integers of quantised operands.
#pragma once

#include <limits>

#include "ep/kernels/quantization/rounding.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

inline constexpr DTypeSet kByteTypes{DType::kInt8, DType::kUInt8};

// Element i of a tensor of one of these types. In a launch.
inline int32_t ByteAt(const TensorView& view, int64_t i) {
  return view.dtype == DType::kInt8 ? view.as<const int8_t>()[i] : view.as<const uint8_t>()[i];
}

// Values as integers of T that have a zero point. The range of T less the zero point has integers as its ends, so that
// a value may be rounded after it is saturated.
template <class T>
struct ByteRange {
  explicit ByteRange(float zero)
      : zero(static_cast<int32_t>(zero)),
        low(static_cast<float>(std::numeric_limits<T>::lowest()) - zero),
        high(static_cast<float>(std::numeric_limits<T>::max()) - zero) {}

  // Half to even, plus the zero point; 0 for NaN.
  T Round(float x) const {
    const float number = x == x ? x : static_cast<float>(-zero);
    return static_cast<T>(RoundSaturated(number, low, high) + zero);
  }

  int32_t zero;
  float low, high;
};

}  // namespace npu

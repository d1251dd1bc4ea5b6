// A row of int8 that ends with its scale, a float32.
#pragma once

#include <cstring>

#include "ep/kernels/quantization/symmetric_rows.h"

namespace npu {

inline constexpr int64_t kScaleBytes = sizeof(float);

// The elements of x, as many as `rounding` has columns, and behind them their scale.
template <class T>
inline void StoreScaled(SymmetricRows<T>& rounding, const T* x, int8_t* to) {
  const float scale = rounding.Run(x, to);
  std::memcpy(to + rounding.columns(), &scale, kScaleBytes);
}

}  // namespace npu

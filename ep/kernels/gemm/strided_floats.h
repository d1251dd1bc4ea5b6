// Elements that are a stride apart, as a row of float32.
#pragma once

#include "ep/kernels/convert.h"

namespace npu::gemm {

template <class T>
void LoadFloats(const T* from, int64_t stride, int64_t count, float* out) {
  if (stride == 1) return ToFloat(from, out, count);
  for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(from[i * stride]);
}

}  // namespace npu::gemm

// Activations of rows in place, as the epilogue of a matmul takes them.
#pragma once

#include <cstdint>

#include "ep/kernels/activation/activations.h"

namespace npu {

using RowActivation = void (*)(float* values, int64_t count);

template <float (*f)(float)>
void ActivateRow(float* values, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) values[i] = f(values[i]);
}

inline float Relu(float x) { return x < 0 ? 0.0f : x; }

}  // namespace npu

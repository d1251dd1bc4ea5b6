// RMS normalisation of one row, shared by every operator that contains one.
#pragma once

#include <cmath>
#include <cstdint>

#include "ep/kernels/row_block.h"
#include "ep/kernels/row_sum.h"

namespace npu {

// 1 / sqrt(mean(x²) + epsilon) of a row of n elements; NaN for an empty row, whose mean is undefined. Sums in float32
// within a block and in double across blocks: a row of any length is summed to a few ulp of float32.
template <class T>
float ReciprocalRms(const T* x, double epsilon, int64_t n) {
  InBlock<T> in;
  double total = 0.0;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    total += SumOf(in.Load(x + begin, count), count, [](auto v) { return v * v; });
  });
  return static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(n) + epsilon));
}

// y = x * rstd * gamma over a row, rounded once. y may be x.
template <class T, class Gamma>
void ScaleRow(const T* x, float rstd, const Gamma* gamma, T* y, int64_t n) {
  InBlock<T> in;
  InBlock<Gamma> scale;
  OutBlock<T> out;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    const float* v = in.Load(x + begin, count);
    const float* g = scale.Load(gamma + begin, count);
    float* r = out.Values(y + begin);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) r[i] = v[i] * rstd * g[i];
    out.Commit(y + begin, count);
  });
}

// y = x * rstd * gamma with rstd = 1 / sqrt(mean(x²) + epsilon), which is returned. y may be x.
template <class T, class Gamma>
float RmsNormRow(const T* x, const Gamma* gamma, double epsilon, T* y, int64_t n) {
  const float rstd = ReciprocalRms(x, epsilon, n);
  ScaleRow(x, rstd, gamma, y, n);
  return rstd;
}

}  // namespace npu

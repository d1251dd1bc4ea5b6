// RMS normalisation of one row, shared by every operator that contains one.
#pragma once

#include <cmath>
#include <cstdint>

#include "ep/kernels/row_block.h"

namespace npu {

// Float32 lanes inside a block, double across blocks: a row of any length is summed to a few ulp of float32.
template <class T>
double SumOfSquares(const T* x, int64_t n) {
  InBlock<T> in;
  double total = 0.0;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    const float* v = in.Load(x + begin, count);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; ++i) sum += v[i] * v[i];
    total += sum;
  });
  return total;
}

// y = x * rstd * gamma over a row of n elements, rounded once; returns rstd = 1 / sqrt(mean(x²) + epsilon).
// y may be x. An empty row gives NaN, the mean of nothing.
template <class T, class Gamma>
float RmsNormRow(const T* x, const Gamma* gamma, double epsilon, T* y, int64_t n) {
  const float rstd = static_cast<float>(1.0 / std::sqrt(SumOfSquares(x, n) / static_cast<double>(n) + epsilon));
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
  return rstd;
}

}  // namespace npu

// Sums over rows of floats and doubles with enough partial sums to hide the latency of additions.
#pragma once

#include <cstdint>

#include "ep/kernels/float_vector.h"

namespace npu {

// The sum of term(v) over a row; `term` is one expression that accepts a float and a vector of floats.
template <class F>
float SumOf(const float* v, int64_t n, F term) {
  using simd::kLanes, simd::Load, simd::Vec;
  Vec a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a += term(Load(v + i));
    b += term(Load(v + i + kLanes));
    c += term(Load(v + i + 2 * kLanes));
    d += term(Load(v + i + 3 * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) a += term(Load(v + i));
  float sum = simd::SumOfLanes((a + b) + (c + d));
  for (; i < n; ++i) sum += term(v[i]);
  return sum;
}

template <class F>
double SumOf(const double* v, int64_t n, F term) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += term(v[i]);
  return sum;
}

}  // namespace npu

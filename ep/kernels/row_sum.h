// Sums over rows of floats with enough partial sums to hide the latency of additions.
#pragma once

#include <cstdint>
#include <cstring>

#include "ep/kernels/gemm/vector.h"

namespace npu {

// The sum of term(v) over a row; `term` is one expression that accepts a float and a vector of floats.
template <class F>
float SumOf(const float* v, int64_t n, F term) {
  using gemm::kLanes;
  using gemm::Vec;
  const auto load = [](const float* from) {
    Vec x;
    std::memcpy(&x, from, sizeof(x));
    return x;
  };
  Vec a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a += term(load(v + i));
    b += term(load(v + i + kLanes));
    c += term(load(v + i + 2 * kLanes));
    d += term(load(v + i + 3 * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) a += term(load(v + i));
  a = (a + b) + (c + d);
  float sum = 0.0f;
  for (int lane = 0; lane < kLanes; ++lane) sum += a[lane];
  for (; i < n; ++i) sum += term(v[i]);
  return sum;
}

}  // namespace npu

// Mean and variance of a row and the normalisation with them: layer, deep and group normalisation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ep/kernels/row_block.h"
#include "ep/kernels/row_sum.h"

namespace npu {

struct Moments {
  float mean = 0.0f, rstd = 0.0f;
};

// Mean and 1 / sqrt(variance + epsilon) of a row of n floats, NaN for an empty one. load(begin, count) returns a block
// of the row and is called twice for each block: the variance is computed from the differences from the mean, because a
// single pass over squares would lose it to cancellation.
template <class Load>
Moments RowMoments(int64_t n, double epsilon, Load load) {
  double total = 0.0;
  ForEachBlock(
      n, [&](int64_t begin, int64_t count) { total += SumOf(load(begin, count), count, [](auto v) { return v; }); });
  const double mean = total / static_cast<double>(n);
  const float center = static_cast<float>(mean);
  double squares = 0.0;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    squares += SumOf(load(begin, count), count, [center](auto v) { return (v - center) * (v - center); });
  });
  return {center, static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(n) + epsilon))};
}

// An optional row of weights: if it is null, every element is `absent`.
template <class T>
class WeightBlock {
 public:
  WeightBlock(const T* weights, float absent) : weights_(weights) {
    if (weights == nullptr) std::fill_n(absent_, kRowBlock, absent);
  }
  const float* Load(int64_t begin, int64_t count) {
    return weights_ == nullptr ? absent_ : in_.Load(weights_ + begin, count);
  }

 private:
  const T* weights_;
  InBlock<T> in_;
  alignas(64) float absent_[kRowBlock];
};

// y = (x - mean) * rstd * gamma + beta over a row whose blocks load(begin, count) returns, rounded once. gamma and beta
// may be null. y may alias the row.
template <class T, class Weight, class Load>
void NormalizeRow(int64_t n, Moments m, Load load, const Weight* gamma, const Weight* beta, T* y) {
  WeightBlock<Weight> scale(gamma, 1.0f), shift(beta, 0.0f);
  OutBlock<T> out;
  ForEachBlock(n, [&](int64_t begin, int64_t count) {
    const float* v = load(begin, count);
    const float* g = scale.Load(begin, count);
    const float* b = shift.Load(begin, count);
    float* r = out.Values(y + begin);
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) r[i] = (v[i] - m.mean) * m.rstd * g[i] + b[i];
    out.Commit(y + begin, count);
  });
}

}  // namespace npu

// The RMS norm of the sum of two rows in two passes: the sum is rounded once, and the norm reads the rounded values.
// Also the norm of one row, with the same bits as of a sum of that value.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ep/kernels/float_vector.h"
#include "ep/kernels/row_block.h"

namespace npu {

// Rows of n elements on one thread.
template <class T>
class AddRmsNormRows {
 public:
  AddRmsNormRows(const T* gamma, double epsilon, int64_t n)
      : epsilon_(epsilon), n_(n), in_gamma_(n), gamma_(in_gamma_.Load(gamma)), sums_(n) {}

  // sum = a + b and y = sum * rstd * gamma, each rounded once; null: not wanted. Returns rstd. sum and y may be a or b.
  // Squares are added in float32 within a block and in double across blocks, as in ReciprocalRms.
  float Run(const T* a, const T* b, T* sum, T* y) {
    double total = 0.0;
    ForEachBlock(n_, [&](int64_t begin, int64_t count) {
      T* out = sum == nullptr ? nullptr : sum + begin;
      total += AddBlock<true>(a + begin, b + begin, out, sums_.values() + begin, count);
    });
    return Normalize(total, y);
  }

  // The same of x, which is a sum already. y may be x.
  float Run(const T* x, T* y) {
    double total = 0.0;
    ForEachBlock(n_, [&](int64_t begin, int64_t count) {
      total += AddBlock<false>(x + begin, nullptr, nullptr, sums_.values() + begin, count);
    });
    return Normalize(total, y);
  }

 private:
  float Normalize(double total, T* y) {
    const float rstd = static_cast<float>(1.0 / std::sqrt(total / static_cast<double>(n_) + epsilon_));
    if (y != nullptr) Scale(rstd, y);
    return rstd;
  }

  // Writes the rounded sums to `rounded` and, as T, to `sum`; returns the sum of their squares. Without
  // kAdd the sums are a.
  template <bool kAdd>
  static float AddBlock(const T* a, const T* b, T* sum, float* rounded, int64_t n) {
    using namespace simd;
    constexpr int kSums = 4;  // hide the latency of additions
    Vec squares[kSums] = {};
    const auto add = [&](int64_t i, Vec& square) NPU_SIMD_INLINE_LAMBDA {
      Vec v = LoadFloats(a + i);
      if constexpr (kAdd) v = Rounded<T>(v + LoadFloats(b + i));
      if (sum != nullptr) StoreRounded(v, sum + i);
      Store(rounded + i, v);
      square += v * v;
    };
    int64_t i = 0;
    for (; i + kSums * kLanes <= n; i += kSums * kLanes)
#pragma GCC unroll 4
      for (int s = 0; s < kSums; ++s) add(i + s * kLanes, squares[s]);
    for (; i + kLanes <= n; i += kLanes) add(i, squares[0]);
    float total = SumOfLanes((squares[0] + squares[1]) + (squares[2] + squares[3]));
    for (; i < n; ++i) {
      T value = a[i];
      if constexpr (kAdd) value = FromFloat<T>(ToFloat(value) + ToFloat(b[i]));
      if (sum != nullptr) sum[i] = value;
      rounded[i] = ToFloat(value);
      total += rounded[i] * rounded[i];
    }
    return total;
  }

  void Scale(float rstd, T* y) {
    using namespace simd;
    const float* sums = sums_.values();
    int64_t i = 0;
    for (; i + kLanes <= n_; i += kLanes) StoreRounded(Rounded<T>(Load(sums + i) * rstd * Load(gamma_ + i)), y + i);
    for (; i < n_; ++i) y[i] = FromFloat<T>(sums[i] * rstd * gamma_[i]);
  }

  double epsilon_;
  int64_t n_;
  InRow<T> in_gamma_;
  const float* gamma_;
  RowScratch sums_;
};

// The same for `rows` rows on all threads. Null sums, y or rstd: not wanted.
template <class T>
void AddRmsNorm(int64_t rows, int64_t n, double epsilon, const T* a, const T* b, const T* gamma, T* sums, T* y,
                float* rstd) {
  ParallelFor(rows, RowGrain(n), [=](int64_t begin, int64_t end) {
    AddRmsNormRows<T> norm(gamma, epsilon, n);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = row * n;
      const float r = norm.Run(a + at, b + at, sums ? sums + at : nullptr, y ? y + at : nullptr);
      if (rstd) rstd[row] = r;
    }
  });
}

// The norm of `rows` rows on all threads. y may be x.
template <class T>
void RmsNorm(int64_t rows, int64_t n, double epsilon, const T* x, const T* gamma, T* y) {
  ParallelFor(rows, RowGrain(n), [=](int64_t begin, int64_t end) {
    AddRmsNormRows<T> norm(gamma, epsilon, n);
    for (int64_t row = begin; row < end; ++row) norm.Run(x + row * n, y + row * n);
  });
}

}  // namespace npu

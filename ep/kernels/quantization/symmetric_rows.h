// Rows of floats as int8 by a scale of each row, without offsets, which is what layers with int8 activations do in
// every step: the bits are those of quantize.h, in one pass for the scale and one for the integers.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "ep/kernels/float_vector.h"
#include "ep/kernels/quantization/extremes.h"
#include "ep/kernels/quantization/quantize.h"
#include "ep/kernels/row_block.h"

namespace npu {

// Rows of n elements on one thread.
template <class T>
class SymmetricRows {
 public:
  // `smooth`: factors of the columns, or null.
  SymmetricRows(const float* smooth, int64_t n) : smooth_(smooth), n_(n), values_(n) {}

  int64_t columns() const { return n_; }

  // y = the integers of x times the factors; returns their scale.
  float Run(const T* x, int8_t* y) {
    const float scale = std::bit_cast<float>(smooth_ ? LoadValues<true>(x) : LoadValues<false>(x)) / 127.0f;
    const float* const values = values_.values();
    // Where neither the reciprocal nor a remainder of a quotient that does not round to 0 leaves float32's range.
    if (scale > 0x1p-100f && scale < 0x1p100f) {
      Divide(values, scale, y);
    } else {
      const float none = 0.0f;
      ForEachBlock(n_, [&](int64_t at, int64_t count) {
        QuantizeBlock(QuantizeBy::kDivisionRoundedAtEnd, QuantizedType::kInt8, values + at, {&scale, false},
                      {&none, false}, y + at, count);
      });
    }
    return scale;
  }

 private:
  // Keeps the products and returns the bits of the largest magnitude.
  template <bool kSmooth>
  uint32_t LoadValues(const T* x) {
    using namespace simd;
    float* const values = values_.values();
    const float* const smooth = smooth_;
    const int64_t n = n_;
    const IntVec magnitude = Broadcast(int32_t{0x7fffffff});
    IntVec most = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      Vec v = LoadFloats(x + i);
      if constexpr (kSmooth) v *= Load(smooth + i);
      Store(values + i, v);
      const IntVec bits = (IntVec)v & magnitude;
      most = bits > most ? bits : most;
    }
    uint32_t largest = 0;
    for (int lane = 0; lane < kLanes; ++lane) largest = std::max(largest, static_cast<uint32_t>(most[lane]));
    for (; i < n; ++i) {
      values[i] = kSmooth ? ToFloat(x[i]) * smooth[i] : ToFloat(x[i]);
      largest = std::max(largest, MagnitudeBits(values[i]));
    }
    return largest;
  }

  // By the reciprocal of the scale, rounded, where a division of vectors takes longer than all else: each correction
  // adds the remainder times the reciprocal, and the second makes the quotient the rounded one (Markstein).
  void Divide(const float* values, float scale, int8_t* y) const {
#if defined(__FMA__) || defined(__aarch64__)
    const float reciprocal = 1.0f / scale;
    const auto quotient = [=](float x) {
      float q = x * reciprocal;
      q = std::fma(std::fma(-q, scale, x), reciprocal, q);
      return std::fma(std::fma(-q, scale, x), reciprocal, q);
    };
#else
    const auto quotient = [=](float x) { return x / scale; };
#endif
    // The quotients are within 127 and some ulps. 1.5 * 2^23 moves the rounded one into the low bits of the mantissa.
#pragma omp simd
    for (int64_t i = 0; i < n_; ++i)
      y[i] = static_cast<int8_t>(std::bit_cast<uint32_t>(quotient(values[i]) + 0x1.8p23f));
  }

  const float* smooth_;
  int64_t n_;
  RowScratch values_;
};

}  // namespace npu

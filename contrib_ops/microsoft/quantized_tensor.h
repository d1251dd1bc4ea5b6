// Tensors of 8-bit integers with one scale and one zero point, as the operands and results of the QLinear operators.
// Scales and zero points are device memory, read in the launch; an absent zero point is 0.
#pragma once

#include <array>
#include <cstdint>

#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/bytes.h"
#include "ep/runtime/kernel_api.h"

namespace npu {

class QuantizationScale {
 public:
  // Checks that `scale` is one float32 and `zero_point`, if present, one integer of `dtype`.
  QuantizationScale(const char* op, const char* name, DType dtype, const TensorView& scale,
                    const TensorView& zero_point)
      : scale_(scale), zero_(zero_point), dtype_(dtype) {
    NPU_OP_CHECK(op, scale && scale.dtype == DType::kFloat32 && scale.elements() == 1, "expected one scale of ", name,
                 " of float32, got ", NameOf(scale.dtype), " ", scale.shape);
    NPU_OP_CHECK(
        op, kByteTypes.Contains(dtype) && (!zero_point || (zero_point.dtype == dtype && zero_point.elements() == 1)),
        "expected one zero point of ", name, " of ", NameOf(dtype), ", got ", NameOf(zero_point.dtype), " ",
        zero_point.shape);
  }

  DType dtype() const { return dtype_; }
  bool is_signed() const { return dtype_ == DType::kInt8; }

  // In the launch.
  float scale() const { return scale_.as<const float>()[0]; }
  float zero() const { return zero_ ? static_cast<float>(ByteAt(zero_, 0)) : 0.0f; }
  // The values of n integers, and the integers of n values: rounded half to even and saturated, NaN as 0.
  void Dequantize(const void* from, int64_t n, float* to) const {
    if (is_signed()) {
      DequantizeAs(static_cast<const int8_t*>(from), n, to);
    } else {
      DequantizeAs(static_cast<const uint8_t*>(from), n, to);
    }
  }
  void Quantize(const float* from, int64_t n, void* to) const {
    if (is_signed()) {
      QuantizeAs(from, n, static_cast<int8_t*>(to));
    } else {
      QuantizeAs(from, n, static_cast<uint8_t*>(to));
    }
  }

 private:
  template <class T>
  void DequantizeAs(const T* from, int64_t n, float* to) const {
    const float by = scale(), minus = zero();
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = (static_cast<float>(from[i]) - minus) * by;
  }
  template <class T>
  void QuantizeAs(const float* from, int64_t n, T* to) const {
    const float by = scale();
    const ByteRange<T> range(zero());
#if defined(__FMA__) || defined(__aarch64__)
    // A division of vectors takes as long as a dozen multiply-adds. Twice corrected by its remainder, the product with
    // the rounded reciprocal is the rounded quotient (Markstein), while nothing overflows; a remainder that underflows
    // is one of a quotient that becomes 0. Beyond kMost every quotient saturates.
    constexpr float kLeastScale = 0x1p-40f, kMostScale = 0x1p40f, kMost = 0x1p60f;
    if (by >= kLeastScale && by <= kMostScale) {
      const float reciprocal = 1.0f / by;
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        float x = from[i];
        x = x < -kMost ? -kMost : x;
        x = x > kMost ? kMost : x;
        float quotient = x * reciprocal;
        quotient = __builtin_fmaf(__builtin_fmaf(-quotient, by, x), reciprocal, quotient);
        quotient = __builtin_fmaf(__builtin_fmaf(-quotient, by, x), reciprocal, quotient);
        to[i] = range.Round(quotient);
      }
      return;
    }
#endif
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] = range.Round(from[i] / by);
  }

  TensorView scale_, zero_;
  DType dtype_;
};

// What a function of one value makes of each of the 256 integers. Made in the launch.
class ByteTable {
 public:
  template <class F>
  ByteTable(const QuantizationScale& from, const QuantizationScale& to, const F& f) {
    std::array<uint8_t, 256> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint8_t>(i);
    std::array<float, 256> values;
    from.Dequantize(all.data(), 256, values.data());
    for (float& value : values) value = f(value);
    to.Quantize(values.data(), 256, table_.data());
  }
  // The same values in another scale.
  ByteTable(const QuantizationScale& from, const QuantizationScale& to)
      : ByteTable(from, to, [](float x) { return x; }) {}

  uint8_t operator[](uint8_t integer) const { return table_[integer]; }
  void Map(const uint8_t* from, int64_t n, uint8_t* to) const {
    for (int64_t i = 0; i < n; ++i) to[i] = table_[from[i]];
  }

 private:
  std::array<uint8_t, 256> table_;
};

}  // namespace npu

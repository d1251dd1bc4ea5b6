#include "ep/kernels/quantization/requantize.h"

#include <limits>

#include "ep/kernels/elementwise/widen.h"
#include "ep/kernels/quantization/bytes.h"
#include "ep/kernels/quantization/rounding.h"

namespace npu {
namespace {

float FloatAt(const TensorView& view, int64_t i) {
  return DispatchTypes("QLinear", view.dtype, Types<float, Float16, BFloat16>{},
                       [&](auto type) { return Widened(view.as<const decltype(type)>()[i]); });
}

// step: 0, the line's scale for all, or 1.
template <class T>
void Convert(const int32_t* sums, const float* scales, int64_t step, float zero, int64_t n, T* out) {
  constexpr float kLow = std::numeric_limits<T>::lowest(), kHigh = std::numeric_limits<T>::max();
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float rounded = RoundHalfEven(static_cast<float>(sums[i]) * scales[i * step]) + zero;
    out[i] = static_cast<T>(RoundSaturated(rounded, kLow, kHigh));
  }
}

}  // namespace

Requantization::Requantization(const char* op, const TensorView& a_scale, const TensorView& b_scale,
                               const TensorView& y_scale, const TensorView& y_zero_point, int64_t lines)
    : a_scale_(a_scale), b_scale_(b_scale), y_scale_(y_scale), y_zero_(y_zero_point) {
  NPU_CHECK(a_scale.elements() == 1 && y_scale.elements() == 1 && y_zero_point.elements() == 1, "[", op,
            "] expected one scale of the first operand, and one scale and one zero point of the result, got shapes ",
            a_scale.shape, ", ", y_scale.shape, " and ", y_zero_point.shape);
  NPU_CHECK(b_scale.elements() == 1 || b_scale.elements() == lines, "[", op,
            "] expected one scale of the second operand, or ", lines, ", got shape ", b_scale.shape);
}

void Requantization::Load() {
  const float a = FloatAt(a_scale_, 0), y = FloatAt(y_scale_, 0);
  for (int64_t i = 0; i < b_scale_.elements(); ++i) scales_.push_back(a * FloatAt(b_scale_, i) / y);
  zero_ = static_cast<float>(ByteAt(y_zero_, 0));
}

void Requantization::Row(const int32_t* sums, int64_t line, bool along_lines, int64_t n, void* out) const {
  const bool one = scales_.size() == 1;
  const float* scales = scales_.data() + (one ? 0 : line);
  const int64_t step = !one && along_lines ? 1 : 0;
  if (y_zero_.dtype == DType::kInt8) {
    Convert(sums, scales, step, zero_, n, static_cast<int8_t*>(out));
  } else {
    Convert(sums, scales, step, zero_, n, static_cast<uint8_t*>(out));
  }
}

}  // namespace npu

#include <limits>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/quantization/bytes.h"
#include "ep/kernels/quantization/requantize.h"
#include "ep/kernels/quantization/rounding.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace npu {
namespace {

float FloatAt(const TensorView& view, int64_t i) {
  return DispatchTypes("QLinear", view.dtype, Types<float, Float16, BFloat16>{},
                       [&](auto type) { return Upcast(view.as<const decltype(type)>()[i]); });
}

#if defined(__AVX512F__)

// kAdds: sums wrap. In plain loops the compiler takes 64 elements at a time, since results are bytes: rows are shorter.
template <bool kAdds, class T>
void ConvertRow(const int32_t* sums, const uint32_t* added, const float* scales, const ByteRange<T>& bounds, int64_t n,
                T* out) {
  const __m512 low = _mm512_set1_ps(bounds.low), high = _mm512_set1_ps(bounds.high);
  const __m512i zero = _mm512_set1_epi32(bounds.zero);
  const __m512 of_nan = _mm512_cvtepi32_ps(_mm512_set1_epi32(-bounds.zero));
  constexpr int64_t kLanes = 16;
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto mask = static_cast<__mmask16>(n - i < kLanes ? (1u << (n - i)) - 1 : 0xffffu);
    __m512i sum = _mm512_maskz_loadu_epi32(mask, sums + i);
    if constexpr (kAdds) sum = _mm512_add_epi32(sum, _mm512_maskz_loadu_epi32(mask, added + i));
    const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_maskz_loadu_ps(mask, scales + i));
    const __m512 number = _mm512_mask_mov_ps(of_nan, _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    const __m512i rounded = _mm512_cvt_roundps_epi32(_mm512_min_ps(_mm512_max_ps(number, low), high), kNearest);
    _mm512_mask_cvtepi32_storeu_epi8(out + i, mask, _mm512_add_epi32(rounded, zero));
  }
}

#else

// kAdds: sums wrap.
template <bool kAdds, class T>
void ConvertRow(const int32_t* sums, const uint32_t* added, const float* scales, const ByteRange<T>& bounds, int64_t n,
                T* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    int32_t sum = sums[i];
    if constexpr (kAdds) sum = static_cast<int32_t>(static_cast<uint32_t>(sum) + added[i]);
    out[i] = bounds.Round(static_cast<float>(sum) * scales[i]);
  }
}

#endif

}  // namespace

Requantization::Requantization(const char* op, const TensorView& a_scale, const TensorView& b_scale,
                               const TensorView& y_scale, const TensorView& y_zero_point, int64_t lines)
    : a_scale_(a_scale), b_scale_(b_scale), y_scale_(y_scale), y_zero_(y_zero_point), lines_(lines) {
  NPU_OP_CHECK(op, a_scale.elements() == 1 && y_scale.elements() == 1 && y_zero_point.elements() == 1,
               "expected one scale of the first operand, and one scale and one zero point of the result, got shapes ",
               a_scale.shape, ", ", y_scale.shape, " and ", y_zero_point.shape);
  NPU_OP_CHECK(op, b_scale.elements() == 1 || b_scale.elements() == lines,
               "expected one scale of the second operand, or ", lines, ", got shape ", b_scale.shape);
}

void Requantization::Load() {
  const float a = FloatAt(a_scale_, 0), y = FloatAt(y_scale_, 0);
  const int64_t given = b_scale_.elements();
  for (int64_t i = 0; i < lines_; ++i) scales_.push_back(a * FloatAt(b_scale_, given == 1 ? 0 : i) / y);
  zero_ = static_cast<float>(ByteAt(y_zero_, 0));
}

void Requantization::Rows(const int32_t* sums, int64_t pitch, int64_t rows, const uint32_t* added, int64_t line,
                          int64_t n, void* out) const {
  const float* scales = scales_.data() + line;
  const auto convert = [&](auto type) {
    using T = decltype(type);
    const ByteRange<T> bounds(zero_);
    T* to = static_cast<T*>(out);
    for (int64_t r = 0; r < rows; ++r, sums += pitch, to += n) {
      if (added != nullptr) {
        ConvertRow<true>(sums, added, scales, bounds, n, to);
      } else {
        ConvertRow<false>(sums, added, scales, bounds, n, to);
      }
    }
  };
  dtype() == DType::kInt8 ? convert(int8_t{}) : convert(uint8_t{});
}

}  // namespace npu

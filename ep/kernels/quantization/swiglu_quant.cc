#include "ep/kernels/quantization/swiglu_quant.h"

#include <cmath>

#include "ep/kernels/activation/activations.h"
#include "ep/kernels/quantization/rounding.h"

namespace npu {
namespace {

template <Rounding kRounding>
int8_t ToInt8(float x) {
  if constexpr (kRounding == Rounding::kHalfEven) return static_cast<int8_t>(RoundSaturated(x, -128.0f, 127.0f));
  // Just beyond the ends of int8 all roundings saturate.
  float within = x == x ? x : 0.0f;
  within = within < -129.0f ? -129.0f : within;
  within = within > 129.0f ? 129.0f : within;
  int32_t whole = static_cast<int32_t>(within);
  const float fraction = within - static_cast<float>(whole);  // of the sign of x
  if constexpr (kRounding == Rounding::kHalfAway) whole += (fraction >= 0.5f ? 1 : 0) - (fraction <= -0.5f ? 1 : 0);
  if constexpr (kRounding == Rounding::kDown) whole -= fraction < 0.0f ? 1 : 0;
  if constexpr (kRounding == Rounding::kUp) whole += fraction > 0.0f ? 1 : 0;
  whole = whole < -128 ? -128 : whole;
  return static_cast<int8_t>(whole > 127 ? 127 : whole);
}

template <Rounding kRounding>
void RoundAll(const float* s, float factor, int8_t* out, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = ToInt8<kRounding>(s[i] * factor);
}

template <int64_t kStride>
void SwigluOf(const SwigluForm& form, const float* gate, const float* value, float* s, int64_t count) {
  if (!form.clamps) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) s[i] = Silu(gate[i * kStride]) * value[i * kStride];
    return;
  }
  const float limit = form.limit, alpha = form.alpha, bias = form.bias;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    float a = gate[i * kStride], b = value[i * kStride];
    a = a > limit ? limit : a;
    b = b < -limit ? -limit : b;
    b = b > limit ? limit : b;
    s[i] = a * math::Sigmoid(alpha * a) * (b + bias);
  }
}

}  // namespace

void AddAsFloats(const int32_t* x, const int32_t* bias, float* out, int64_t count) {
  if (bias == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(x[i]);
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(x[i]) + static_cast<uint32_t>(bias[i])));
}

void ScaleInPlace(float* v, const float* weight, float token, const float* bias, int64_t count) {
  if (weight != nullptr) MultiplyInPlace(v, weight, count);
  if (token != 1.0f) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) v[i] *= token;
  }
  if (bias == nullptr) return;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) v[i] += bias[i];
}

void Swiglu(const SwigluForm& form, const float* gate, const float* value, int64_t stride, float* s, int64_t count) {
  if (stride == 2) return SwigluOf<2>(form, gate, value, s, count);
  SwigluOf<1>(form, gate, value, s, count);
}

void MultiplyInPlace(float* s, const float* scale, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) s[i] *= scale[i];
}

void DivideInPlace(float* s, const float* scale, int64_t scale_stride, const float* offset, int64_t offset_stride,
                   int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) s[i] = s[i] / scale[i * scale_stride] + offset[i * offset_stride];
}

void RoundToInt8(Rounding rounding, const float* s, float factor, int8_t* out, int64_t count) {
  switch (rounding) {
    case Rounding::kHalfEven:
      return RoundAll<Rounding::kHalfEven>(s, factor, out, count);
    case Rounding::kHalfAway:
      return RoundAll<Rounding::kHalfAway>(s, factor, out, count);
    case Rounding::kDown:
      return RoundAll<Rounding::kDown>(s, factor, out, count);
    case Rounding::kUp:
      return RoundAll<Rounding::kUp>(s, factor, out, count);
    case Rounding::kTowardsZero:
      return RoundAll<Rounding::kTowardsZero>(s, factor, out, count);
  }
}

}  // namespace npu

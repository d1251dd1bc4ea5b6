// The steps of npu_dequant_swiglu_quant on blocks of a row. As in quantize.h, nothing is contracted to fused
// operations.
#pragma once

#include <cstdint>

namespace npu {

// Numbered as round_mode is.
enum class Rounding { kHalfEven, kHalfAway, kDown, kUp, kTowardsZero };

struct SwigluForm {
  bool clamps;  // both sides to `limit`, with `alpha` and `bias`
  float limit, alpha, bias;
};

// out[i] = x[i] + bias[i], which wraps, as floats; bias may be null.
void AddAsFloats(const int32_t* x, const int32_t* bias, float* out, int64_t count);

// v[i] = v[i] * weight[i] * token + bias[i]; weight and bias may be null.
void ScaleInPlace(float* v, const float* weight, float token, const float* bias, int64_t count);

// s[i] = gate[i * stride], activated, times value[i * stride].
void Swiglu(const SwigluForm& form, const float* gate, const float* value, int64_t stride, float* s, int64_t count);

// s[i] = s[i] * scale[i].
void MultiplyInPlace(float* s, const float* scale, int64_t count);

// q[i] = s[i] / scale + offset; a stride of 0 repeats one value.
void DivideInPlace(float* s, const float* scale, int64_t scale_stride, const float* offset, int64_t offset_stride,
                   int64_t count);

// out[i] = s[i] * factor, rounded and saturated; NaN becomes 0.
void RoundToInt8(Rounding rounding, const float* s, float factor, int8_t* out, int64_t count);

}  // namespace npu

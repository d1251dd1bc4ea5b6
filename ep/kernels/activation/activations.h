// Activations of one float, without branches: plain loops over them vectorise.
#pragma once

#include <cmath>

#include "ep/kernels/vector_math.h"

namespace npu {

inline float Silu(float x) { return x * math::Sigmoid(x); }

// x * Phi(x) with the error function: erfc(z) = t (a1 + a2 t + ... + a5 t^4) exp(-z²) with t = 1 / (1 + 0.3275911 z),
// to 1.5e-7 (Abramowitz and Stegun, 7.1.26). As exact as 1 + Erf, which cancels for x < 0, at two thirds of its cost.
inline float GeluErf(float x) {
  const float t = 1.0f / (1.0f + 0.23164190f * std::fabs(x));  // z = |x| / sqrt(2)
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float tail = p * t * math::ExpOfNegative(-0.5f * x * x);
  return 0.5f * x * (x < 0.0f ? tail : 2.0f - tail);
}

// The tanh form: sqrt(2/pi) * (x + 0.044715 x³) inside.
inline float GeluTanh(float x) {
  return 0.5f * x * (1.0f + math::Tanh(0x1.988454p-1f * (x + 0.044715f * (x * x * x))));
}

// The sigmoid form.
inline float FastGelu(float x) { return x * math::Sigmoid(1.702f * x); }

// x * tanh(softplus(x)). With w = e^x, tanh(ln(1 + w)) = (w² + 2w) / (w² + 2w + 2): no cancellation for any x.
// From 20 on the quotient is 1.
inline float Mish(float x) {
  const float w = math::Exp(x > 20.0f ? 20.0f : x);
  const float n = w * (w + 2.0f);
  return x * (n / (n + 2.0f));
}

}  // namespace npu

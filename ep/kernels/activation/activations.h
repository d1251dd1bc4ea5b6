// Activations of one float, without branches: plain loops over them vectorise.
#pragma once

#include <cmath>

#include "ep/kernels/vector_math.h"

namespace npu {

inline float Silu(float x) { return x * math::Sigmoid(x); }

// x * Phi(x) with the error function: erfc(z) = t P(t) exp(-z²), z = |x| / sqrt(2), t = 1 / (1 + 0.4 z). P is fitted to
// 6e-8 relative for z <= 10, beyond which exp(-z²) is 0. Unlike 1 + erf, nothing cancels for x < 0.
inline float GeluErf(float x) {
  const float t = 1.0f / (1.0f + 0.28284271f * std::fabs(x));
  float p = 0.0412611626f;
  p = p * t - 0.140358031f;
  p = p * t + 0.0840657279f;
  p = p * t + 0.0878768712f;
  p = p * t + 0.0798151195f;
  p = p * t + 0.193369105f;
  p = p * t + 0.201893508f;
  p = p * t + 0.226442322f;
  p = p * t + 0.225634277f;
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

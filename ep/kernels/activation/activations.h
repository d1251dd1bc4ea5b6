// Activations of one float, without branches: plain loops over them vectorise.
#pragma once

#include "ep/kernels/vector_math.h"

namespace npu {

inline float Silu(float x) { return x * math::Sigmoid(x); }

// x * Phi(x) with the error function.
inline float GeluErf(float x) { return 0.5f * x * (1.0f + math::Erf(x * 0x1.6a09e6p-1f)); }

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

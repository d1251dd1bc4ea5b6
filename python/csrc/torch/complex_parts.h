// Complex tensors as pairs of real ones: their memory holds the parts side by side, so kernels of real numbers serve.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace npu::aten {

// The real and the imaginary part; the latter is undefined for real numbers.
struct ComplexParts {
  at::Tensor re, im;

  // In the type of the parts of `dtype`. A scalar on the host becomes one beside `beside`.
  static ComplexParts Of(const at::Tensor& t, at::ScalarType dtype, const at::Tensor& beside);
  // The parts of a complex tensor, which share its memory.
  static ComplexParts Of(const at::Tensor& t);

  bool HasTwo() const { return im.defined(); }
  at::Tensor& Into(at::Tensor& out) const;  // complex; computed before, so that `out` may be an operand
};

// out = a + b, a - b, a * b or a / b in the complex type `dtype`; false: `type` is no such kernel.
bool ComplexInto(const char* type, at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b, at::Tensor& out);

}  // namespace npu::aten

// Activations that shrink a range around 0 to it, and leaky ReLUs with random slopes.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/hardshrink_backward_meta.h>
#include <ATen/ops/hardshrink_backward_ops.h>
#include <ATen/ops/hardshrink_meta.h>
#include <ATen/ops/hardshrink_ops.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/softshrink_backward_meta.h>
#include <ATen/ops/softshrink_backward_ops.h>
#include <ATen/ops/softshrink_meta.h>
#include <ATen/ops/softshrink_ops.h>
#include <torch/library.h>

#include <optional>
#include <utility>

#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

Function Shrink(const char* type, const c10::Scalar& lambd) { return Aten(type, {{"lambd", lambd.toDouble()}}); }

at::Tensor& HardshrinkOut(const at::Tensor& self, const c10::Scalar& lambd, at::Tensor& out) {
  return Elementwise<at::meta::structured_hardshrink, at::_ops::hardshrink_out>(Shrink("HardShrink", lambd), {self},
                                                                                out, self, lambd);
}
at::Tensor& HardshrinkBackward(const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& lambd,
                               at::Tensor& out) {
  return Elementwise<at::meta::structured_hardshrink_backward, at::_ops::hardshrink_backward_grad_input>(
      Shrink("ShrinkGrad", lambd), {grad, self}, out, grad, self, lambd);
}

at::Tensor& SoftshrinkOut(const at::Tensor& self, const c10::Scalar& lambd, at::Tensor& out) {
  return Elementwise<at::meta::structured_softshrink, at::_ops::softshrink_out>(Shrink("SoftShrink", lambd), {self},
                                                                                out, self, lambd);
}
at::Tensor& SoftshrinkBackward(const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& lambd,
                               at::Tensor& out) {
  return Elementwise<at::meta::structured_softshrink_backward, at::_ops::softshrink_backward_grad_input>(
      Shrink("ShrinkGrad", lambd), {grad, self}, out, grad, self, lambd);
}

// `noise` gets the slope of each element, which is 1 above 0; the gradient is the product with it.
at::Tensor Rrelu(const at::Tensor& self, at::Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper,
                 bool training, std::optional<at::Generator> generator) {
  TORCH_CHECK(self.is_floating_point() && self.scalar_type() == noise.scalar_type() && self.sizes() == noise.sizes(),
              "rrelu_with_noise expected floats and noise of their shape and dtype, got ", self.scalar_type(),
              self.sizes(), " and ", noise.scalar_type(), noise.sizes());
  const double low = lower.toDouble(), high = upper.toDouble();
  TORCH_CHECK(low <= high, "rrelu_with_noise expected a lower bound up to the upper one, got ", low, " and ", high);
  if (!training) return at::leaky_relu(self, (low + high) / 2);
  noise.uniform_(low, high, std::move(generator)).masked_fill_(self.gt(0), 1);
  return self * noise;
}
at::Tensor& RreluInPlace(at::Tensor& self, at::Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper,
                         bool training, std::optional<at::Generator> generator) {
  return self.copy_(Rrelu(self, noise, lower, upper, training, std::move(generator)));
}
at::Tensor& RreluOut(const at::Tensor& self, at::Tensor& noise, const c10::Scalar& lower, const c10::Scalar& upper,
                     bool training, std::optional<at::Generator> generator, at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  return out.copy_(Rrelu(self, noise, lower, upper, training, std::move(generator)));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("hardshrink.out", &HardshrinkOut);
  m.impl("hardshrink_backward.grad_input", &HardshrinkBackward);
  m.impl("softshrink.out", &SoftshrinkOut);
  m.impl("softshrink_backward.grad_input", &SoftshrinkBackward);
  m.impl("rrelu_with_noise", &Rrelu);
  m.impl("rrelu_with_noise_", &RreluInPlace);
  m.impl("rrelu_with_noise.out", &RreluOut);
}

}  // namespace
}  // namespace npu::aten

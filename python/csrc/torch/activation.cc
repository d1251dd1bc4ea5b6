// Activations and their gradients.
#include <ATen/ops/cat.h>
#include <ATen/ops/elu_backward_meta.h>
#include <ATen/ops/elu_backward_ops.h>
#include <ATen/ops/elu_meta.h>
#include <ATen/ops/elu_ops.h>
#include <ATen/ops/glu_meta.h>
#include <ATen/ops/glu_ops.h>
#include <ATen/ops/hardsigmoid_backward_meta.h>
#include <ATen/ops/hardsigmoid_backward_ops.h>
#include <ATen/ops/hardsigmoid_meta.h>
#include <ATen/ops/hardsigmoid_ops.h>
#include <ATen/ops/leaky_relu_backward_meta.h>
#include <ATen/ops/leaky_relu_backward_ops.h>
#include <ATen/ops/mish_meta.h>
#include <ATen/ops/mish_ops.h>
#include <ATen/ops/softplus_backward_meta.h>
#include <ATen/ops/softplus_backward_ops.h>
#include <ATen/ops/softplus_meta.h>
#include <ATen/ops/softplus_ops.h>
#include <ATen/ops/threshold_meta.h>
#include <torch/library.h>

#include <vector>

#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::Tensor& ThresholdOut(const at::Tensor& self, const c10::Scalar& threshold, const c10::Scalar& value,
                         at::Tensor& out) {
  InferElementwise<at::meta::structured_threshold>(out, self, threshold, value);
  return out.copy_(self.masked_fill(self.le(threshold), value));
}

at::Tensor& SoftplusOut(const at::Tensor& self, const c10::Scalar& beta, const c10::Scalar& threshold,
                        at::Tensor& out) {
  return Elementwise<at::meta::structured_softplus, at::_ops::softplus_out>(
      Aten("Softplus", {{"beta", beta.toDouble()}, {"threshold", threshold.toDouble()}}), {self}, out, self, beta,
      threshold);
}
at::Tensor& SoftplusBackward(const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& beta,
                             const c10::Scalar& threshold, at::Tensor& out) {
  return Elementwise<at::meta::structured_softplus_backward, at::_ops::softplus_backward_grad_input>(
      Aten("SoftplusGrad", {{"beta", beta.toDouble()}, {"threshold", threshold.toDouble()}}), {grad, self}, out, grad,
      self, beta, threshold);
}

Function::Numbers EluNumbers(const c10::Scalar& alpha, const c10::Scalar& scale, const c10::Scalar& input_scale) {
  return {{"alpha", alpha.toDouble()}, {"scale", scale.toDouble()}, {"input_scale", input_scale.toDouble()}};
}
at::Tensor& EluOut(const at::Tensor& self, const c10::Scalar& alpha, const c10::Scalar& scale,
                   const c10::Scalar& input_scale, at::Tensor& out) {
  return Elementwise<at::meta::structured_elu, at::_ops::elu_out>(Aten("Elu", EluNumbers(alpha, scale, input_scale)),
                                                                  {self}, out, self, alpha, scale, input_scale);
}
at::Tensor& EluBackward(const at::Tensor& grad, const c10::Scalar& alpha, const c10::Scalar& scale,
                        const c10::Scalar& input_scale, bool is_result, const at::Tensor& self, at::Tensor& out) {
  return Elementwise<at::meta::structured_elu_backward, at::_ops::elu_backward_grad_input>(
      Aten(is_result ? "EluGradOfResult" : "EluGrad", EluNumbers(alpha, scale, input_scale)), {grad, self}, out, grad,
      alpha, scale, input_scale, is_result, self);
}

at::Tensor& LeakyReluBackward(const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& slope, bool is_result,
                              at::Tensor& out) {
  return Elementwise<at::meta::structured_leaky_relu_backward, at::_ops::leaky_relu_backward_grad_input>(
      Aten("LeakyReluGrad", {{"negative_slope", slope.toDouble()}}), {grad, self}, out, grad, self, slope, is_result);
}

at::Tensor& MishOut(const at::Tensor& self, at::Tensor& out) {
  return Elementwise<at::meta::structured_mish, at::_ops::mish_out>(Onnx("Mish"), {self}, out, self);
}
at::Tensor MishBackward(const at::Tensor& grad, const at::Tensor& self) {
  return FunctionOf("mish_backward", Aten("MishGrad"), self, {grad, self});
}

at::Tensor& HardsigmoidOut(const at::Tensor& self, at::Tensor& out) {
  return Elementwise<at::meta::structured_hardsigmoid, at::_ops::hardsigmoid_out>(
      Onnx("HardSigmoid", {{"alpha", 1.0 / 6}, {"beta", 0.5}}), {self}, out, self);
}
at::Tensor& HardsigmoidBackward(const at::Tensor& grad, const at::Tensor& self, at::Tensor& out) {
  return Elementwise<at::meta::structured_hardsigmoid_backward, at::_ops::hardsigmoid_backward_grad_input>(
      Aten("HardSigmoidGrad"), {grad, self}, out, grad, self);
}

at::Tensor Hardswish(const at::Tensor& self) { return FunctionOf("hardswish", Onnx("HardSwish"), self, {self}); }
at::Tensor& HardswishInPlace(at::Tensor& self) { return self.copy_(Hardswish(self)); }
at::Tensor HardswishBackward(const at::Tensor& grad, const at::Tensor& self) {
  return FunctionOf("hardswish_backward", Aten("HardSwishGrad"), self, {grad, self});
}

// The limit in self's dtype, so that clamp does not promote; for integers, it loses its fraction.
c10::Scalar HardtanhLimit(const at::Tensor& self, const c10::Scalar& limit) {
  TORCH_CHECK(self.scalar_type() != at::kBool, "Bool inputs not supported for hardtanh");
  if (!at::isIntegralType(self.scalar_type(), false)) return limit;
  TORCH_CHECK(at::isSignedType(self.scalar_type()) || limit.toLong() >= 0,
              "cannot do hardtanh on an unsigned type with negative limits");
  return limit.toLong();
}
at::Tensor Hardtanh(const at::Tensor& self, const c10::Scalar& low, const c10::Scalar& high) {
  return self.clamp(HardtanhLimit(self, low), HardtanhLimit(self, high));
}
at::Tensor& HardtanhInPlace(at::Tensor& self, const c10::Scalar& low, const c10::Scalar& high) {
  return self.clamp_(HardtanhLimit(self, low), HardtanhLimit(self, high));
}
at::Tensor HardtanhBackward(const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& low,
                            const c10::Scalar& high) {
  return FunctionOf("hardtanh_backward",
                    Aten("HardTanhGrad", {{"min_val", low.toDouble()}, {"max_val", high.toDouble()}}), self,
                    {grad, self});
}

// The second output is a buffer that only the CPU's gradient uses.
std::tuple<at::Tensor, at::Tensor> LogSigmoid(const at::Tensor& self) {
  return {FunctionOf("log_sigmoid", Aten("LogSigmoid"), self, {self}), Empty({0}, self.scalar_type(), self)};
}
at::Tensor LogSigmoidBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor&) {
  return FunctionOf("log_sigmoid_backward", Aten("LogSigmoidGrad"), self, {grad, self});
}

at::Tensor Prelu(const at::Tensor& self, const at::Tensor& weight) {
  return FunctionOf("prelu", Onnx("PRelu"), self, {self, weight});
}
std::tuple<at::Tensor, at::Tensor> PreluBackward(const at::Tensor& grad, const at::Tensor& self,
                                                 const at::Tensor& weight) {
  return {FunctionOf("prelu_backward", Aten("PReluGrad"), self, {grad, self, weight}),
          FunctionOf("prelu_backward", Aten("PReluSlopeGrad"), self, {grad, self})};
}

// The first half of a dimension, gated by the second.
at::Tensor& GluOut(const at::Tensor& self, int64_t dim, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_glu>(out, self, dim);
  if (!Aten("Glu").Takes(dtype)) return FallBack<at::_ops::glu_out>(self, dim, out);
  const std::vector<at::Tensor> halves = self.chunk(2, dim);
  return FunctionInto(Aten("Glu"), dtype, {halves[0], halves[1]}, out);
}
at::Tensor GluBackward(const at::Tensor& grad, const at::Tensor& self, int64_t dim) {
  if (self.numel() == 0) return Empty(self.sizes(), self.scalar_type(), self);
  const std::vector<at::Tensor> halves = self.chunk(2, dim);
  TORCH_CHECK(halves.size() == 2 && grad.sizes() == halves[0].sizes() && halves[1].sizes() == halves[0].sizes(),
              "glu_backward expected a gradient of half of ", self.sizes(), ", got ", grad.sizes());
  return at::cat({FunctionOf("glu_backward", Aten("GluGrad"), halves[0], {grad, halves[1]}),
                  FunctionOf("glu_backward", Aten("GluGateGrad"), halves[0], {grad, halves[0], halves[1]})},
                 dim);
}
at::Tensor& GluBackwardOut(const at::Tensor& grad, const at::Tensor& self, int64_t dim, at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  return out.copy_(GluBackward(grad, self, dim));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("threshold.out", &ThresholdOut);
  m.impl("glu.out", &GluOut);
  m.impl("glu_backward", &GluBackward);
  m.impl("glu_backward.grad_input", &GluBackwardOut);
  m.impl("softplus.out", &SoftplusOut);
  m.impl("softplus_backward.grad_input", &SoftplusBackward);
  m.impl("elu.out", &EluOut);
  m.impl("elu_backward.grad_input", &EluBackward);
  m.impl("leaky_relu_backward.grad_input", &LeakyReluBackward);
  m.impl("mish.out", &MishOut);
  m.impl("mish_backward", &MishBackward);
  m.impl("hardsigmoid.out", &HardsigmoidOut);
  m.impl("hardsigmoid_backward.grad_input", &HardsigmoidBackward);
  m.impl("hardswish", &Hardswish);
  m.impl("hardswish_", &HardswishInPlace);
  m.impl("hardswish_backward", &HardswishBackward);
  m.impl("hardtanh", &Hardtanh);
  m.impl("hardtanh_", &HardtanhInPlace);
  m.impl("hardtanh_backward", &HardtanhBackward);
  m.impl("log_sigmoid_forward", &LogSigmoid);
  m.impl("log_sigmoid_backward", &LogSigmoidBackward);
  m.impl("_prelu_kernel", &Prelu);
  m.impl("_prelu_kernel_backward", &PreluBackward);
}

}  // namespace
}  // namespace npu::aten

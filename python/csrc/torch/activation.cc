// Activations that no ONNX kernel computes as torch does, and their gradients.
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
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// New memory of the shape and type of `self` with f(self, others...).
template <class F, class... Tensors>
at::Tensor Mapped(const char* op, F f, const at::Tensor& self, const Tensors&... others) {
  TORCH_CHECK(IsRealFloat(self.scalar_type()), op, " expected real floats, got ", self.scalar_type());
  at::Tensor out = Empty(self.sizes(), self.scalar_type(), self);
  return MapInto(op, self.scalar_type(), out, f, self, others...);
}

at::Tensor& SoftplusOut(const at::Tensor& self, const c10::Scalar& beta, const c10::Scalar& threshold,
                        at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_softplus>(out, self, beta, threshold);
  if (!IsRealFloat(dtype)) return FallBack<at::_ops::softplus_out>(self, beta, threshold, out);
  const auto softplus = [b = beta.toDouble(), limit = threshold.toDouble()](auto x) {
    using R = decltype(x);
    const R scaled = x * static_cast<R>(b);
    return scaled > static_cast<R>(limit) ? x : std::log1p(std::exp(scaled)) / static_cast<R>(b);
  };
  return MapInto("softplus", dtype, out, softplus, self);
}
at::Tensor& SoftplusBackward(const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& beta,
                             const c10::Scalar& threshold, at::Tensor& out) {
  const at::ScalarType dtype =
      InferElementwise<at::meta::structured_softplus_backward>(out, grad, self, beta, threshold);
  if (!IsRealFloat(dtype)) return FallBack<at::_ops::softplus_backward_grad_input>(grad, self, beta, threshold, out);
  const auto slope = [b = beta.toDouble(), limit = threshold.toDouble()](auto g, auto x) {
    using R = decltype(x);
    const R scaled = x * static_cast<R>(b);
    return scaled > static_cast<R>(limit) ? g : g / (1 + std::exp(-scaled));
  };
  return MapInto("softplus_backward", dtype, out, slope, grad, self);
}

at::Tensor& EluOut(const at::Tensor& self, const c10::Scalar& alpha, const c10::Scalar& scale,
                   const c10::Scalar& input_scale, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_elu>(out, self, alpha, scale, input_scale);
  if (!IsRealFloat(dtype)) return FallBack<at::_ops::elu_out>(self, alpha, scale, input_scale, out);
  const auto elu = [a = alpha.toDouble(), s = scale.toDouble(), i = input_scale.toDouble()](auto x) {
    using R = decltype(x);
    return x < 0 ? std::expm1(x * static_cast<R>(i)) * static_cast<R>(a * s) : x * static_cast<R>(s);
  };
  return MapInto("elu", dtype, out, elu, self);
}
at::Tensor& EluBackward(const at::Tensor& grad, const c10::Scalar& alpha, const c10::Scalar& scale,
                        const c10::Scalar& input_scale, bool is_result, const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType dtype =
      InferElementwise<at::meta::structured_elu_backward>(out, grad, alpha, scale, input_scale, is_result, self);
  if (!IsRealFloat(dtype))
    return FallBack<at::_ops::elu_backward_grad_input>(grad, alpha, scale, input_scale, is_result, self, out);
  const auto slope = [a = alpha.toDouble() * scale.toDouble(), s = scale.toDouble(), i = input_scale.toDouble(),
                      is_result](auto g, auto x) {
    using R = decltype(x);
    if (x > 0) return g * static_cast<R>(s);
    return g * static_cast<R>(i) *
           (is_result ? x + static_cast<R>(a) : std::exp(x * static_cast<R>(i)) * static_cast<R>(a));
  };
  return MapInto("elu_backward", dtype, out, slope, grad, self);
}

at::Tensor& LeakyReluBackward(const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& slope, bool is_result,
                              at::Tensor& out) {
  const at::ScalarType dtype =
      InferElementwise<at::meta::structured_leaky_relu_backward>(out, grad, self, slope, is_result);
  if (!IsRealFloat(dtype)) return FallBack<at::_ops::leaky_relu_backward_grad_input>(grad, self, slope, is_result, out);
  const auto f = [s = slope.toDouble()](auto g, auto x) { return x > 0 ? g : g * static_cast<decltype(g)>(s); };
  return MapInto("leaky_relu_backward", dtype, out, f, grad, self);
}

at::Tensor& MishOut(const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_mish>(out, self);
  if (!IsRealFloat(dtype)) return FallBack<at::_ops::mish_out>(self, out);
  return MapInto("mish", dtype, out, [](auto x) { return x * std::tanh(std::log1p(std::exp(x))); }, self);
}

at::Tensor MishBackward(const at::Tensor& grad, const at::Tensor& self) {
  const auto f = [](auto x, auto g) {
    const auto squashed = std::tanh(std::log1p(std::exp(x)));
    return g * (squashed + x * (1 - squashed * squashed) / (1 + std::exp(-x)));
  };
  return Mapped("mish_backward", f, self, grad);
}

at::Tensor& HardsigmoidOut(const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_hardsigmoid>(out, self);
  if (!IsRealFloat(dtype)) return FallBack<at::_ops::hardsigmoid_out>(self, out);
  const auto f = [](auto x) { return std::clamp<decltype(x)>(x + 3, 0, 6) / 6; };
  return MapInto("hardsigmoid", dtype, out, f, self);
}
at::Tensor& HardsigmoidBackward(const at::Tensor& grad, const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_hardsigmoid_backward>(out, grad, self);
  if (!IsRealFloat(dtype)) return FallBack<at::_ops::hardsigmoid_backward_grad_input>(grad, self, out);
  const auto f = [](auto g, auto x) { return x > -3 && x < 3 ? g / 6 : decltype(g){0}; };
  return MapInto("hardsigmoid_backward", dtype, out, f, grad, self);
}

at::Tensor Hardswish(const at::Tensor& self) {
  return Mapped("hardswish", [](auto x) { return x * std::clamp<decltype(x)>(x + 3, 0, 6) / 6; }, self);
}
at::Tensor& HardswishInPlace(at::Tensor& self) { return self.copy_(Hardswish(self)); }
at::Tensor HardswishBackward(const at::Tensor& grad, const at::Tensor& self) {
  const auto f = [](auto x, auto g) {
    using R = decltype(x);
    return x <= -3 ? R{0} : x < 3 ? g * (x / 3 + static_cast<R>(0.5)) : g;
  };
  return Mapped("hardswish_backward", f, self, grad);
}

// A limit in self's own type, so that clamp promotes nothing: of integers, limits lose their fractions.
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
  const auto f = [l = low.toDouble(), h = high.toDouble()](auto x, auto g) {
    return x <= l || x >= h ? decltype(g){0} : g;
  };
  return Mapped("hardtanh_backward", f, self, grad);
}

// The buffer is for the CPU's gradient only.
std::tuple<at::Tensor, at::Tensor> LogSigmoid(const at::Tensor& self) {
  const auto f = [](auto x) { return std::fmin(x, decltype(x){0}) - std::log1p(std::exp(-std::fabs(x))); };
  return {Mapped("log_sigmoid", f, self), Empty({0}, self.scalar_type(), self)};
}
at::Tensor LogSigmoidBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor&) {
  return Mapped("log_sigmoid_backward", [](auto x, auto g) { return g / (1 + std::exp(x)); }, self, grad);
}

at::Tensor Prelu(const at::Tensor& self, const at::Tensor& weight) {
  return Mapped("prelu", [](auto x, auto w) { return x > 0 ? x : w * x; }, self, weight);
}
std::tuple<at::Tensor, at::Tensor> PreluBackward(const at::Tensor& grad, const at::Tensor& self,
                                                 const at::Tensor& weight) {
  return {Mapped(
              "prelu_backward", [](auto x, auto g, auto w) { return x > 0 ? g : w * g; }, self, grad, weight),
          Mapped("prelu_backward", [](auto x, auto g) { return x > 0 ? decltype(g){0} : x * g; }, self, grad)};
}

// The first half of a dimension, gated by the second.
at::Tensor& GluOut(const at::Tensor& self, int64_t dim, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_glu>(out, self, dim);
  if (!IsRealFloat(dtype)) return FallBack<at::_ops::glu_out>(self, dim, out);
  const std::vector<at::Tensor> halves = self.chunk(2, dim);
  return MapInto("glu", dtype, out, [](auto a, auto b) { return a / (1 + std::exp(-b)); }, halves[0], halves[1]);
}
at::Tensor GluBackward(const at::Tensor& grad, const at::Tensor& self, int64_t dim) {
  if (self.numel() == 0) return Empty(self.sizes(), self.scalar_type(), self);
  const std::vector<at::Tensor> halves = self.chunk(2, dim);
  TORCH_CHECK(halves.size() == 2 && grad.sizes() == halves[0].sizes() && halves[1].sizes() == halves[0].sizes(),
              "glu_backward expected a gradient of half of ", self.sizes(), ", got ", grad.sizes());
  const auto by_gated = [](auto b, auto g) { return g / (1 + std::exp(-b)); };
  const auto by_gate = [](auto a, auto g, auto b) {
    const auto gate = 1 / (1 + std::exp(-b));
    return g * a * gate * (1 - gate);
  };
  return at::cat(
      {Mapped("glu_backward", by_gated, halves[1], grad), Mapped("glu_backward", by_gate, halves[0], grad, halves[1])},
      dim);
}
at::Tensor& GluBackwardOut(const at::Tensor& grad, const at::Tensor& self, int64_t dim, at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  return out.copy_(GluBackward(grad, self, dim));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
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

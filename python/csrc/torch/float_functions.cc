// Functions of one float or of two that no ONNX kernel computes.
#include <ATen/ops/acos_meta.h>
#include <ATen/ops/acos_ops.h>
#include <ATen/ops/acosh_meta.h>
#include <ATen/ops/acosh_ops.h>
#include <ATen/ops/asin_meta.h>
#include <ATen/ops/asin_ops.h>
#include <ATen/ops/asinh_meta.h>
#include <ATen/ops/asinh_ops.h>
#include <ATen/ops/atan2_meta.h>
#include <ATen/ops/atan2_ops.h>
#include <ATen/ops/atan_meta.h>
#include <ATen/ops/atan_ops.h>
#include <ATen/ops/atanh_meta.h>
#include <ATen/ops/atanh_ops.h>
#include <ATen/ops/copysign_meta.h>
#include <ATen/ops/copysign_ops.h>
#include <ATen/ops/cosh_meta.h>
#include <ATen/ops/cosh_ops.h>
#include <ATen/ops/erfc_meta.h>
#include <ATen/ops/erfc_ops.h>
#include <ATen/ops/erfinv_meta.h>
#include <ATen/ops/erfinv_ops.h>
#include <ATen/ops/exp2_meta.h>
#include <ATen/ops/exp2_ops.h>
#include <ATen/ops/expm1_meta.h>
#include <ATen/ops/expm1_ops.h>
#include <ATen/ops/frac_meta.h>
#include <ATen/ops/frac_ops.h>
#include <ATen/ops/hypot_meta.h>
#include <ATen/ops/hypot_ops.h>
#include <ATen/ops/lerp_meta.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/lgamma_meta.h>
#include <ATen/ops/lgamma_ops.h>
#include <ATen/ops/log10_meta.h>
#include <ATen/ops/log10_ops.h>
#include <ATen/ops/log1p_meta.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/log2_meta.h>
#include <ATen/ops/log2_ops.h>
#include <ATen/ops/logaddexp_meta.h>
#include <ATen/ops/logaddexp_ops.h>
#include <ATen/ops/logit_backward_meta.h>
#include <ATen/ops/logit_backward_ops.h>
#include <ATen/ops/logit_ops.h>
#include <ATen/ops/nan_to_num_ops.h>
#include <ATen/ops/sinc_meta.h>
#include <ATen/ops/sinc_ops.h>
#include <ATen/ops/sinh_meta.h>
#include <ATen/ops/sinh_ops.h>
#include <ATen/ops/tan_meta.h>
#include <ATen/ops/tan_ops.h>
#include <ATen/ops/trunc_meta.h>
#include <ATen/ops/trunc_ops.h>
#include <ATen/ops/xlogy_meta.h>
#include <ATen/ops/xlogy_ops.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// Giles' approximation ("Approximating the erfinv function", 2011), good to float, then Halley's method.
double InverseErf(double y) {
  if (!(y > -1 && y < 1)) return y == 1 || y == -1 ? std::copysign(HUGE_VAL, y) : std::nan("");
  double w = -std::log((1 - y) * (1 + y)), p;
  if (w < 5) {
    w -= 2.5;
    p = 2.81022636e-08;
    for (const double c : {3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                           -0.00417768164, 0.246640727, 1.50140941})
      p = c + p * w;
  } else {
    w = std::sqrt(w) - 3;
    p = -0.000200214257;
    for (const double c : {0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
                           1.00167406, 2.83297682})
      p = c + p * w;
  }
  double x = p * y;
  constexpr int kMaxSteps = 6;  // one or two, but for tails beyond float's
  for (int i = 0; i < kMaxSteps; ++i) {
    // Near 0 of erf, else of the tail, whose digits erf has lost.
    const double error = std::fabs(y) < 0.5 ? std::erf(x) - y
                         : y > 0            ? (1 - y) - std::erfc(x)
                                            : std::erfc(-x) - (1 + y);
    const double step = error / (2 * std::numbers::inv_sqrtpi * std::exp(-x * x));
    x -= step / (1 + x * step);
    if (std::fabs(step) <= std::numeric_limits<double>::epsilon() * std::fabs(x)) break;
  }
  return x;
}

// The C library's lgamma writes a global.
template <class R>
R LogGamma(R x) {
  int sign;
  return static_cast<R>(::lgamma_r(static_cast<double>(x), &sign));
}

template <class R>
R LogAddExp(R a, R b) {
  return a == b ? a + static_cast<R>(std::numbers::ln2) : std::fmax(a, b) + std::log1p(std::exp(-std::fabs(a - b)));
}

// 0 where x is, whatever the logarithm, but for NaN.
template <class R>
R XLogY(R x, R y) {
  return x == 0 && !std::isnan(y) ? R{0} : x * std::log(y);
}

template <class Meta, class Op, auto f, class... Tensors>
at::Tensor& Function(const Tensors&... inputs, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<Meta>(out, inputs...);
  if (!IsRealFloat(dtype)) return FallBack<Op>(inputs..., out);
  return MapInto(Op::name, dtype, out, f, inputs...);
}

// Integers are whole already.
at::Tensor& TruncOut(const at::Tensor& self, at::Tensor& out) {
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false))
    return Function<at::meta::structured_trunc, at::_ops::trunc_out, [](auto x) { return std::trunc(x); }, at::Tensor>(
        self, out);
  at::native::resize_output(out, self.sizes());
  return out.copy_(self);
}

template <class R>
R Sinc(R x) {
  const R scaled = x * static_cast<R>(std::numbers::pi);
  return x == 0 ? R{1} : std::sin(scaled) / scaled;
}
// From the nearer end, so that both ends are met.
template <class R>
R Lerp(R a, R b, R weight) {
  return std::fabs(weight) < R(0.5) ? a + weight * (b - a) : b - (b - a) * (1 - weight);
}

at::Tensor& LogitOut(const at::Tensor& self, std::optional<double> eps, at::Tensor& out) {
  if (!IsRealFloat(self.scalar_type()) || out.scalar_type() != self.scalar_type())
    return FallBack<at::_ops::logit_out>(self, eps, out);
  at::native::resize_output(out, self.sizes());
  const auto logit = [eps](auto x) {
    using R = decltype(x);
    if (eps)
      x = x < static_cast<R>(*eps) ? static_cast<R>(*eps) : x > static_cast<R>(1 - *eps) ? static_cast<R>(1 - *eps) : x;
    return std::log(x / (1 - x));
  };
  return MapInto("logit", self.scalar_type(), out, logit, self);
}
at::Tensor Logit(const at::Tensor& self, std::optional<double> eps) {
  if (!IsRealFloat(self.scalar_type())) return FallBack<at::_ops::logit>(self, eps);
  at::Tensor out = Empty(self.sizes(), self.scalar_type(), self);
  return LogitOut(self, eps, out);
}
at::Tensor& LogitBackward(const at::Tensor& grad, const at::Tensor& self, std::optional<double> eps, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_logit_backward>(out, grad, self, eps);
  if (!IsRealFloat(dtype)) return FallBack<at::_ops::logit_backward_grad_input>(grad, self, eps, out);
  const auto slope = [low = eps.value_or(0), clamps = eps.has_value()](auto g, auto x) {
    using R = decltype(x);
    if (x < static_cast<R>(low) || x > static_cast<R>(1 - low))
      return clamps ? R{0} : std::numeric_limits<R>::quiet_NaN();
    return g / (x * (1 - x));
  };
  return MapInto("logit_backward", dtype, out, slope, grad, self);
}

at::Tensor& NanToNumOut(const at::Tensor& self, std::optional<double> nan, std::optional<double> above,
                        std::optional<double> below, at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "nan_to_num: dtype of out: ", out.scalar_type(),
              " should be same as input: ", self.scalar_type());
  at::native::resize_output(out, self.sizes());
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/true)) return out.is_same(self) ? out : out.copy_(self);
  if (!IsRealFloat(self.scalar_type())) return FallBack<at::_ops::nan_to_num_out>(self, nan, above, below, out);
  double most = 0;
  DispatchNumbers(self.scalar_type(), [&]<class T>(T) { most = static_cast<double>(std::numeric_limits<T>::max()); });
  const auto number = [n = nan.value_or(0), high = above.value_or(most), low = below.value_or(-most)](auto x) {
    using R = decltype(x);
    return std::isnan(x) ? static_cast<R>(n) : !std::isinf(x) ? x : static_cast<R>(x > 0 ? high : low);
  };
  return MapInto("nan_to_num", self.scalar_type(), out, number, self);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("logit", &Logit);
  m.impl("logit.out", &LogitOut);
  m.impl("logit_backward.grad_input", &LogitBackward);
  m.impl("nan_to_num.out", &NanToNumOut);
  m.impl("lerp.Tensor_out",
         &Function<at::meta::structured_lerp_Tensor, at::_ops::lerp_Tensor_out,
                   [](auto a, auto b, auto weight) { return Lerp(a, b, weight); }, at::Tensor, at::Tensor, at::Tensor>);
#define NPU_UNARY(op, value) \
  m.impl(#op ".out", &Function<at::meta::structured_##op, at::_ops::op##_out, [](auto x) { return value; }, at::Tensor>)
#define NPU_BINARY(shape, op, name, value)                                                                             \
  m.impl(name, &Function<at::meta::structured_##shape, at::_ops::op, [](auto x, auto y) { return value; }, at::Tensor, \
                         at::Tensor>)
  NPU_UNARY(acos, std::acos(x));
  NPU_UNARY(acosh, std::acosh(x));
  NPU_UNARY(asin, std::asin(x));
  NPU_UNARY(asinh, std::asinh(x));
  NPU_UNARY(atan, std::atan(x));
  NPU_UNARY(atanh, std::atanh(x));
  NPU_UNARY(cosh, std::cosh(x));
  NPU_UNARY(erfc, std::erfc(x));
  NPU_UNARY(erfinv, InverseErf(x));
  NPU_UNARY(exp2, std::exp2(x));
  NPU_UNARY(expm1, std::expm1(x));
  NPU_UNARY(frac, x - std::trunc(x));
  NPU_UNARY(lgamma, LogGamma(x));
  NPU_UNARY(log10, std::log10(x));
  NPU_UNARY(log1p, std::log1p(x));
  NPU_UNARY(log2, std::log2(x));
  NPU_UNARY(sinc, Sinc(x));
  NPU_UNARY(sinh, std::sinh(x));
  NPU_UNARY(tan, std::tan(x));
  m.impl("trunc.out", &TruncOut);
  NPU_BINARY(atan2, atan2_out, "atan2.out", std::atan2(x, y));
  NPU_BINARY(copysign_Tensor, copysign_out, "copysign.out", std::copysign(x, y));
  NPU_BINARY(hypot, hypot_out, "hypot.out", std::hypot(x, y));
  NPU_BINARY(logaddexp, logaddexp_out, "logaddexp.out", LogAddExp(x, y));
  NPU_BINARY(xlogy_Tensor, xlogy_OutTensor, "xlogy.OutTensor", XLogY(x, y));
#undef NPU_BINARY
#undef NPU_UNARY
}

}  // namespace
}  // namespace npu::aten

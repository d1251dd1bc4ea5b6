// Functions of floats that are operators of their own.
#include <ATen/Dispatch.h>
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
#include <ATen/ops/digamma_meta.h>
#include <ATen/ops/digamma_ops.h>
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
#include <ATen/ops/logaddexp2_meta.h>
#include <ATen/ops/logaddexp2_ops.h>
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

#include <limits>

#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

// Integers are copied.
at::Tensor& TruncOut(const at::Tensor& self, at::Tensor& out) {
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false))
    return Elementwise<at::meta::structured_trunc, at::_ops::trunc_out>(Aten("Trunc"), {self}, out, self);
  CheckOutputType(out, self.scalar_type());
  at::native::resize_output(out, self.sizes());
  return out.copy_(self);
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor& LogitOut(const at::Tensor& self, std::optional<double> eps, at::Tensor& out) {
  const Function logit = Aten("Logit", {{"low", eps.value_or(-kInfinity)}, {"high", 1 - eps.value_or(-kInfinity)}});
  if (!logit.Takes(self.scalar_type()) || out.scalar_type() != self.scalar_type())
    return FallBack<at::_ops::logit_out>(self, eps, out);
  InferBroadcast(out, {self});
  return FunctionInto(logit, self.scalar_type(), {self}, out);
}
at::Tensor Logit(const at::Tensor& self, std::optional<double> eps) {
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/true))
    return self.to(c10::get_default_dtype_as_scalartype()).logit(eps);
  if (!Aten("Logit").Takes(self.scalar_type())) return FallBack<at::_ops::logit>(self, eps);
  at::Tensor out = Empty({0}, self.scalar_type(), self);
  return LogitOut(self, eps, out);
}
at::Tensor& LogitInPlace(at::Tensor& self, std::optional<double> eps) { return LogitOut(self, eps, self); }
at::Tensor& LogitBackward(const at::Tensor& grad, const at::Tensor& self, std::optional<double> eps, at::Tensor& out) {
  const double low = eps.value_or(0), outside = eps ? 0 : std::numeric_limits<double>::quiet_NaN();
  return Elementwise<at::meta::structured_logit_backward, at::_ops::logit_backward_grad_input>(
      Aten("LogitGrad", {{"low", low}, {"high", 1 - low}, {"outside", outside}}), {grad, self}, out, grad, self, eps);
}

at::Tensor& NanToNumOut(const at::Tensor& self, std::optional<double> nan, std::optional<double> above,
                        std::optional<double> below, at::Tensor& out) {
  TORCH_CHECK(self.scalar_type() == out.scalar_type(), "nan_to_num: dtype of out: ", out.scalar_type(),
              " should be same as input: ", self.scalar_type());
  at::native::resize_output(out, self.sizes());
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/true)) return out.is_same(self) ? out : out.copy_(self);
  if (!Aten("NanToNum").Takes(self.scalar_type()))
    return FallBack<at::_ops::nan_to_num_out>(self, nan, above, below, out);
  double most = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "nan_to_num",
                                  [&] { most = static_cast<double>(std::numeric_limits<scalar_t>::max()); });
  return FunctionInto(
      Aten("NanToNum", {{"nan", nan.value_or(0)}, {"posinf", above.value_or(most)}, {"neginf", below.value_or(-most)}}),
      self.scalar_type(), {self}, out);
}

at::Tensor& LerpOut(const at::Tensor& self, const at::Tensor& end, const at::Tensor& weight, at::Tensor& out) {
  return Elementwise<at::meta::structured_lerp_Tensor, at::_ops::lerp_Tensor_out>(Aten("Lerp"), {self, end, weight},
                                                                                  out, self, end, weight);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("logit", &Logit);
  m.impl("logit.out", &LogitOut);
  m.impl("logit_", &LogitInPlace);
  m.impl("logit_backward.grad_input", &LogitBackward);
  m.impl("nan_to_num.out", &NanToNumOut);
  m.impl("lerp.Tensor_out", &LerpOut);
  m.impl("trunc.out", &TruncOut);
#define NPU_UNARY(op, function)                                                                         \
  m.impl(                                                                                               \
      #op ".out", +[](const at::Tensor& self, at::Tensor& out) -> at::Tensor& {                         \
        return Elementwise<at::meta::structured_##op, at::_ops::op##_out>(function, {self}, out, self); \
      })
#define NPU_BINARY(name, shape, op, function)                                                                      \
  m.impl(                                                                                                          \
      name, +[](const at::Tensor& self, const at::Tensor& other, at::Tensor& out) -> at::Tensor& {                 \
        return Elementwise<at::meta::structured_##shape, at::_ops::op>(function, {self, other}, out, self, other); \
      })
  NPU_UNARY(acos, Onnx("Acos"));
  NPU_UNARY(acosh, Onnx("Acosh"));
  NPU_UNARY(asin, Onnx("Asin"));
  NPU_UNARY(asinh, Onnx("Asinh"));
  NPU_UNARY(atan, Onnx("Atan"));
  NPU_UNARY(atanh, Onnx("Atanh"));
  NPU_UNARY(cosh, Onnx("Cosh"));
  NPU_UNARY(sinh, Onnx("Sinh"));
  NPU_UNARY(tan, Onnx("Tan"));
  NPU_UNARY(digamma, Aten("Digamma"));
  NPU_UNARY(erfc, Aten("Erfc"));
  NPU_UNARY(erfinv, Aten("Erfinv"));
  NPU_UNARY(exp2, Aten("Exp2"));
  NPU_UNARY(expm1, Aten("Expm1"));
  NPU_UNARY(frac, Aten("Frac"));
  NPU_UNARY(lgamma, Aten("LogGamma"));
  NPU_UNARY(log10, Aten("Log10"));
  NPU_UNARY(log1p, Aten("Log1p"));
  NPU_UNARY(log2, Aten("Log2"));
  NPU_UNARY(sinc, Aten("Sinc"));
  NPU_BINARY("atan2.out", atan2, atan2_out, Aten("Atan2"));
  NPU_BINARY("copysign.out", copysign_Tensor, copysign_out, Aten("CopySign"));
  NPU_BINARY("hypot.out", hypot, hypot_out, Aten("Hypot"));
  NPU_BINARY("logaddexp.out", logaddexp, logaddexp_out, Aten("LogAddExp"));
  NPU_BINARY("logaddexp2.out", logaddexp2, logaddexp2_out, Aten("LogAddExp2"));
  NPU_BINARY("xlogy.OutTensor", xlogy_Tensor, xlogy_OutTensor, Aten("XLogY"));
#undef NPU_BINARY
#undef NPU_UNARY
}

}  // namespace
}  // namespace npu::aten

// Unary functions.
#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_not_meta.h>
#include <ATen/ops/ceil_meta.h>
#include <ATen/ops/cos_meta.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/erf_meta.h>
#include <ATen/ops/exp_meta.h>
#include <ATen/ops/floor_meta.h>
#include <ATen/ops/gelu_meta.h>
#include <ATen/ops/hypot.h>
#include <ATen/ops/leaky_relu_meta.h>
#include <ATen/ops/log_meta.h>
#include <ATen/ops/neg_meta.h>
#include <ATen/ops/reciprocal_meta.h>
#include <ATen/ops/round_meta.h>
#include <ATen/ops/rsqrt_meta.h>
#include <ATen/ops/sgn_meta.h>
#include <ATen/ops/sgn_ops.h>
#include <ATen/ops/sigmoid_meta.h>
#include <ATen/ops/sign_meta.h>
#include <ATen/ops/silu_meta.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_meta.h>
#include <ATen/ops/sqrt_meta.h>
#include <ATen/ops/tanh_meta.h>
#include <torch/library.h>

#include <cmath>
#include <cstdlib>

#include "python/csrc/torch/complex_parts.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

template <class Meta, class Op>
at::Tensor& Unary(const char* type, const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<Meta>(out, self);
  if (out.numel() == 0) return out;
  KernelCall call(type);
  if (!call.Takes(0, dtype)) return FallBack<Op>(self, out);
  call.In(Dense(self, dtype)).Into(out);
  return out;
}

at::Tensor& BitwiseNotOut(const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType common = InferElementwise<at::meta::structured_bitwise_not>(out, self);
  TORCH_CHECK_NOT_IMPLEMENTED(at::isIntegralType(common, /*includeBool=*/true), "\"bitwise_not\" not implemented for '",
                              common, "'");
  if (out.numel() > 0) KernelCall(common == at::kBool ? "Not" : "BitwiseNot").In(Dense(self)).Into(out);
  return out;
}

// Infinities of one sign; integers have none.
at::Tensor& IsInfinite(const at::Tensor& self, bool negative, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kBool, negative ? "isneginf" : "isposinf",
              " does not support non-boolean outputs.");
  InferBroadcast(out, {self});
  if (out.numel() == 0) return out;
  KernelCall call("IsInf");
  if (!call.Takes(0, self.scalar_type())) return out.zero_();
  call.In(Dense(self))
      .Set("detect_negative", static_cast<int64_t>(negative))
      .Set("detect_positive", static_cast<int64_t>(!negative))
      .Into(out);
  return out;
}
at::Tensor& IsneginfOut(const at::Tensor& self, at::Tensor& out) { return IsInfinite(self, true, out); }
at::Tensor& IsposinfOut(const at::Tensor& self, at::Tensor& out) { return IsInfinite(self, false, out); }

at::Tensor& LogicalNotOut(const at::Tensor& self, at::Tensor& out) {
  InferBroadcast(out, {self});
  if (out.numel() > 0) KernelCall("Not").In(Dense(self, at::kBool)).Into(out);
  return out;
}

at::Tensor Isnan(const at::Tensor& self) {
  KernelCall call("IsNaN");
  if (!call.Takes(0, self.scalar_type())) return self.ne(self);  // only NaN compares unequal to itself
  at::Tensor out = at::empty_like(self, self.options().dtype(at::kBool));
  if (out.numel() > 0) call.In(Dense(self)).Into(out);
  return out;
}

at::Tensor& RsqrtOut(const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType dtype = AccumulateType(InferElementwise<at::meta::structured_rsqrt>(out, self));
  if (out.numel() == 0) return out;
  if (!KernelCall("Sqrt").Takes(0, dtype)) return FallBack<at::_ops::rsqrt_out>(self, out);
  KernelCall("Reciprocal").In(KernelCall("Sqrt").In(Dense(self, dtype)).One()).Into(out);
  return out;
}

at::Tensor& GeluOut(const at::Tensor& self, c10::string_view approximate, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_gelu>(out, self, approximate);
  if (out.numel() > 0) KernelCall("Gelu").In(Dense(self, dtype)).Set("approximate", std::string(approximate)).Into(out);
  return out;
}

at::Tensor& LeakyReluOut(const at::Tensor& self, const c10::Scalar& slope, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_leaky_relu>(out, self, slope);
  if (out.numel() > 0) KernelCall("LeakyRelu").In(Dense(self, dtype)).Set("alpha", slope.toDouble()).Into(out);
  return out;
}

at::Tensor Relu(const at::Tensor& self) {
  if (!KernelCall("Relu").Takes(0, self.scalar_type())) return FallBack<at::_ops::relu>(self);
  at::Tensor out = at::empty_like(self);
  if (out.numel() > 0) KernelCall("Relu").In(Dense(self)).Into(out);
  return out;
}
at::Tensor& ReluInPlace(at::Tensor& self) {
  if (!KernelCall("Relu").Takes(0, self.scalar_type())) return FallBack<at::_ops::relu_>(self);
  if (self.numel() > 0) KernelCall("Relu").In(Dense(self)).Into(self);
  return self;
}

at::Tensor& AbsOut(const at::Tensor& self, at::Tensor& out) {
  CheckOutputType(
      out, self.is_complex() && !out.is_complex() ? c10::toRealValueType(self.scalar_type()) : self.scalar_type());
  if (self.is_complex() && !out.is_complex()) {
    InferBroadcast(out, {self});
    const ComplexParts parts = ComplexParts::Of(self);
    return out.copy_(at::hypot(parts.re, parts.im));
  }
  if (!KernelCall("Abs").Takes(0, self.scalar_type())) return FallBack<at::_ops::abs_out>(self, out);
  InferBroadcast(out, {self});
  if (out.numel() > 0) KernelCall("Abs").In(Dense(self)).Into(out);
  return out;
}

at::Tensor& ExpOut(const at::Tensor& self, at::Tensor& out) {
  if (self.is_complex()) {
    InferElementwise<at::meta::structured_exp>(out, self);
    const ComplexParts parts = ComplexParts::Of(self);
    const at::Tensor size = parts.re.exp();
    return ComplexParts{size * parts.im.cos(), size * parts.im.sin()}.Into(out);
  }
  return Unary<at::meta::structured_exp, at::_ops::exp_out>("Exp", self, out);
}
at::Tensor& LogOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_log, at::_ops::log_out>("Log", self, out);
}
at::Tensor& SqrtOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_sqrt, at::_ops::sqrt_out>("Sqrt", self, out);
}
at::Tensor& SinOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_sin, at::_ops::sin_out>("Sin", self, out);
}
at::Tensor& CosOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_cos, at::_ops::cos_out>("Cos", self, out);
}
at::Tensor& TanhOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_tanh, at::_ops::tanh_out>("Tanh", self, out);
}
at::Tensor& SigmoidOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_sigmoid, at::_ops::sigmoid_out>("Sigmoid", self, out);
}
at::Tensor& ErfOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_erf, at::_ops::erf_out>("Erf", self, out);
}
at::Tensor& ReciprocalOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_reciprocal, at::_ops::reciprocal_out>("Reciprocal", self, out);
}
// Unsigned integers wrap around.
at::Tensor& NegOut(const at::Tensor& self, at::Tensor& out) {
  if (self.is_complex()) {
    InferElementwise<at::meta::structured_neg>(out, self);
    const ComplexParts parts = ComplexParts::Of(self);
    return ComplexParts{-parts.re, -parts.im}.Into(out);
  }
  if (self.scalar_type() != at::kByte) return Unary<at::meta::structured_neg, at::_ops::neg_out>("Neg", self, out);
  const at::ScalarType dtype = InferElementwise<at::meta::structured_neg>(out, self);
  return out.numel() == 0 ? out : BinaryInto("Sub", dtype, ScalarTensor(0, dtype, self), self, out);
}

// Integers are copied.
template <class Meta, class Op>
at::Tensor& Rounded(const char* type, const at::Tensor& self, at::Tensor& out) {
  if (!at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) return Unary<Meta, Op>(type, self, out);
  InferElementwise<Meta>(out, self);
  return out.is_same(self) ? out : out.copy_(self);
}
at::Tensor& CeilOut(const at::Tensor& self, at::Tensor& out) {
  return Rounded<at::meta::structured_ceil, at::_ops::ceil_out>("Ceil", self, out);
}
at::Tensor& FloorOut(const at::Tensor& self, at::Tensor& out) {
  return Rounded<at::meta::structured_floor, at::_ops::floor_out>("Floor", self, out);
}
at::Tensor& RoundOut(const at::Tensor& self, at::Tensor& out) {
  return Rounded<at::meta::structured_round, at::_ops::round_out>("Round", self, out);
}
// To multiples of a power of ten, in the computing type of 16-bit floats.
at::Tensor& RoundDecimalsOut(const at::Tensor& self, int64_t decimals, at::Tensor& out) {
  if (decimals == 0 || !KernelCall("Round").Takes(0, self.scalar_type())) return RoundOut(self, out);
  InferElementwise<at::meta::structured_round_decimals>(out, self, decimals);
  const double power = std::pow(10.0, static_cast<double>(std::abs(decimals)));
  const at::Tensor x = Wide(self);
  return out.copy_(decimals > 0 ? (x * power).round() / power : (x / power).round() * power);
}
// torch's sign of NaN is 0, ONNX's is NaN.
template <class Meta, class Op>
at::Tensor& Sign(const at::Tensor& self, at::Tensor& out) {
  const bool floats = Aten("Sign").Takes(self.scalar_type());
  return floats ? Elementwise<Meta, Op>(Aten("Sign"), {self}, out, self) : Unary<Meta, Op>("Sign", self, out);
}
at::Tensor& SignOut(const at::Tensor& self, at::Tensor& out) {
  return Sign<at::meta::structured_sign, at::_ops::sign_out>(self, out);
}
// Of complex numbers, those of size 1 in the same direction.
at::Tensor& SgnOut(const at::Tensor& self, at::Tensor& out) {
  if (self.is_complex()) {
    InferElementwise<at::meta::structured_sgn>(out, self);
    const at::Tensor size = self.abs();
    const ComplexParts parts = ComplexParts::Of(self);
    const auto part = [&](const at::Tensor& t) { return (t / size).masked_fill(size.eq(0), 0); };
    return ComplexParts{part(parts.re), part(parts.im)}.Into(out);
  }
  return Sign<at::meta::structured_sgn, at::_ops::sgn_out>(self, out);
}
at::Tensor& SiluOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_silu, at::_ops::silu_out>("Swish", self, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("exp.out", &ExpOut);
  m.impl("log.out", &LogOut);
  m.impl("sqrt.out", &SqrtOut);
  m.impl("sin.out", &SinOut);
  m.impl("cos.out", &CosOut);
  m.impl("tanh.out", &TanhOut);
  m.impl("sigmoid.out", &SigmoidOut);
  m.impl("erf.out", &ErfOut);
  m.impl("reciprocal.out", &ReciprocalOut);
  m.impl("neg.out", &NegOut);
  m.impl("ceil.out", &CeilOut);
  m.impl("floor.out", &FloorOut);
  m.impl("round.out", &RoundOut);
  m.impl("round.decimals_out", &RoundDecimalsOut);
  m.impl("sgn.out", &SgnOut);
  m.impl("sign.out", &SignOut);
  m.impl("silu.out", &SiluOut);
  m.impl("isnan", &Isnan);
  m.impl("rsqrt.out", &RsqrtOut);
  m.impl("gelu.out", &GeluOut);
  m.impl("leaky_relu.out", &LeakyReluOut);
  m.impl("relu", &Relu);
  m.impl("relu_", &ReluInPlace);
  m.impl("abs.out", &AbsOut);
  m.impl("bitwise_not.out", &BitwiseNotOut);
  m.impl("logical_not.out", &LogicalNotOut);
  m.impl("isneginf.out", &IsneginfOut);
  m.impl("isposinf.out", &IsposinfOut);
}

}  // namespace
}  // namespace npu::aten

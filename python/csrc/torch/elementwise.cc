// Elementwise operators. torch says shapes and types; the project's kernels compute.
#include "python/csrc/torch/elementwise.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/add_meta.h>
#include <ATen/ops/addcdiv_meta.h>
#include <ATen/ops/addcmul_meta.h>
#include <ATen/ops/bitwise_and_meta.h>
#include <ATen/ops/bitwise_not_meta.h>
#include <ATen/ops/bitwise_or_meta.h>
#include <ATen/ops/bitwise_xor_meta.h>
#include <ATen/ops/ceil_meta.h>
#include <ATen/ops/clamp_max_meta.h>
#include <ATen/ops/clamp_meta.h>
#include <ATen/ops/clamp_min_meta.h>
#include <ATen/ops/cos_meta.h>
#include <ATen/ops/div_meta.h>
#include <ATen/ops/eq_meta.h>
#include <ATen/ops/erf_meta.h>
#include <ATen/ops/exp_meta.h>
#include <ATen/ops/floor_meta.h>
#include <ATen/ops/fmod_meta.h>
#include <ATen/ops/ge_meta.h>
#include <ATen/ops/gelu_meta.h>
#include <ATen/ops/gt_meta.h>
#include <ATen/ops/le_meta.h>
#include <ATen/ops/leaky_relu_meta.h>
#include <ATen/ops/lerp_meta.h>
#include <ATen/ops/log_meta.h>
#include <ATen/ops/lt_meta.h>
#include <ATen/ops/maximum_meta.h>
#include <ATen/ops/minimum_meta.h>
#include <ATen/ops/mul_meta.h>
#include <ATen/ops/ne_meta.h>
#include <ATen/ops/neg_meta.h>
#include <ATen/ops/pow_meta.h>
#include <ATen/ops/reciprocal_meta.h>
#include <ATen/ops/remainder_meta.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/round_meta.h>
#include <ATen/ops/rsqrt_meta.h>
#include <ATen/ops/sigmoid_meta.h>
#include <ATen/ops/sign_meta.h>
#include <ATen/ops/silu_meta.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_meta.h>
#include <ATen/ops/sqrt_meta.h>
#include <ATen/ops/sub_meta.h>
#include <ATen/ops/tanh_meta.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

bool IsHostScalar(const at::Tensor& t) { return t.is_cpu() && t.dim() == 0; }

// A number beside 16-bit floats keeps its precision: the operator computes in float, as torch does.
at::ScalarType ComputeType(at::ScalarType common, const at::Tensor& a, const at::Tensor& b) {
  return IsHostScalar(a) || IsHostScalar(b) ? AccumulateType(common) : common;
}

template <class Meta, class Op>
at::Tensor& Unary(const char* type, int since_version, const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<Meta>(out, self);
  if (out.numel() == 0) return out;
  KernelCall call(type, since_version);
  if (!call.Takes(0, dtype)) return FallBack<Op>(self, out);
  call.In(Dense(self, dtype)).Into(out);
  return out;
}

// What an arithmetic kernel is for truth values.
struct Arithmetic {
  const char* type;
  int since_version;
  const char* logical;  // null: none
};

template <class Op, class... Args>
at::Tensor& Compute(const Arithmetic& kernel, at::ScalarType common, const at::Tensor& a, const at::Tensor& b,
                    at::Tensor& out, const Args&... args) {
  if (out.numel() == 0) return out;
  if (common == at::kBool && kernel.logical != nullptr) return BinaryInto(kernel.logical, 7, at::kBool, a, b, out);
  const at::ScalarType dtype = ComputeType(common, a, b);
  if (!KernelCall(kernel.type, kernel.since_version).Takes(0, dtype)) return FallBack<Op>(args..., out);
  return BinaryInto(kernel.type, kernel.since_version, dtype, a, b, out);
}

template <class Meta, class Op>
at::Tensor& Binary(const Arithmetic& kernel, const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Compute<Op>(kernel, InferElementwise<Meta>(out, a, b), a, b, out, a, b);
}

// self + alpha * other, or self - alpha * other.
template <class Meta, class Op>
at::Tensor& Sum(const Arithmetic& kernel, const at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha,
                at::Tensor& out) {
  const at::ScalarType common = InferElementwise<Meta>(out, self, other, alpha);
  if (alpha.equal(1)) return Compute<Op>(kernel, common, self, other, out, self, other, alpha);
  const at::ScalarType dtype = AccumulateType(common);
  KernelCall scale("Mul", 14);
  if (out.numel() == 0) return out;
  if (!scale.Takes(0, dtype)) return FallBack<Op>(self, other, alpha, out);
  const c10::DeviceGuard guard(out.device());  // where a number beside the tensors is sent
  const at::Tensor scaled = scale.In(Dense(other, dtype)).In(ScalarTensor(alpha, dtype, out)).One();
  return BinaryInto(kernel.type, kernel.since_version, dtype, self, scaled, out);
}

at::Tensor& AddOut(const at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha, at::Tensor& out) {
  return Sum<at::meta::structured_add_Tensor, at::_ops::add_out>({"Add", 14, "Or"}, self, other, alpha, out);
}
at::Tensor& SubOut(const at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha, at::Tensor& out) {
  return Sum<at::meta::structured_sub_Tensor, at::_ops::sub_out>({"Sub", 14, nullptr}, self, other, alpha, out);
}

at::Tensor& PowScalarOut(const at::Tensor& self, const c10::Scalar& exponent, at::Tensor& out) {
  const at::ScalarType common = InferElementwise<at::meta::structured_pow_Tensor_Scalar>(out, self, exponent);
  const at::ScalarType dtype = AccumulateType(common);
  if (out.numel() == 0) return out;
  // The powers that models use are exact and cheaper than a general one.
  if (exponent.equal(2) && KernelCall("Mul", 14).Takes(0, dtype)) {
    const at::Tensor base = Dense(self, common);
    KernelCall("Mul", 14).In(base).In(base).Into(out);
    return out;
  }
  if (!KernelCall("Pow", 15).Takes(0, dtype)) return FallBack<at::_ops::pow_Tensor_Scalar_out>(self, exponent, out);
  return BinaryInto("Pow", 15, dtype, self, ScalarTensor(exponent, dtype, self), out);
}

// Comparisons. Truth values are compared as the numbers 0 and 1.
template <class Op, class... Args>
at::Tensor& Compare(const char* type, int since_version, bool negate, at::ScalarType common, const at::Tensor& a,
                    const at::Tensor& b, at::Tensor& out, const Args&... args) {
  if (out.numel() == 0) return out;
  const at::ScalarType dtype = common == at::kBool ? at::kByte : common;
  const c10::DeviceGuard guard(out.device());  // where a number beside the tensors is sent
  KernelCall call(type, since_version);
  if (!call.Takes(0, dtype)) return FallBack<Op>(args..., out);
  call.In(Dense(a, dtype)).In(Dense(b, dtype));
  if (!negate) {
    call.Into(out);
  } else {
    KernelCall("Not", 1).In(call.One()).Into(out);
  }
  return out;
}

template <class Meta, class Op>
at::Tensor& CompareTensors(const char* type, int since_version, bool negate, const at::Tensor& a, const at::Tensor& b,
                           at::Tensor& out) {
  return Compare<Op>(type, since_version, negate, InferElementwise<Meta>(out, a, b), a, b, out, a, b);
}
template <class Meta, class Op>
at::Tensor& CompareScalar(const char* type, int since_version, bool negate, const at::Tensor& a, const c10::Scalar& b,
                          at::Tensor& out) {
  const at::ScalarType common = InferElementwise<Meta>(out, a, b);
  if (ToDType(common) == DType::kUndefined) return FallBack<Op>(a, b, out);
  return Compare<Op>(type, since_version, negate, common, a, ScalarTensor(b, common, a), out, a, b);
}

template <class Meta, class Op>
at::Tensor& Bitwise(const Arithmetic& kernel, const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Compute<Op>(kernel, InferElementwise<Meta>(out, a, b), a, b, out, a, b);
}

at::Tensor& BitwiseNotOut(const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType common = InferElementwise<at::meta::structured_bitwise_not>(out, self);
  if (out.numel() > 0)
    KernelCall(common == at::kBool ? "Not" : "BitwiseNot", common == at::kBool ? 1 : 18).In(Dense(self)).Into(out);
  return out;
}

// Infinities of one sign. No integer is one.
at::Tensor& IsInfinite(const at::Tensor& self, bool negative, at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  if (out.numel() == 0) return out;
  KernelCall call("IsInf", 20);
  if (!call.Takes(0, self.scalar_type())) return out.zero_();
  call.In(Dense(self))
      .Set("detect_negative", static_cast<int64_t>(negative))
      .Set("detect_positive", static_cast<int64_t>(!negative))
      .Into(out);
  return out;
}
at::Tensor& IsneginfOut(const at::Tensor& self, at::Tensor& out) { return IsInfinite(self, true, out); }
at::Tensor& IsposinfOut(const at::Tensor& self, at::Tensor& out) { return IsInfinite(self, false, out); }

at::Tensor& Logical(const char* type, const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  at::native::resize_output(out, at::infer_size(a.sizes(), b.sizes()));
  return out.numel() == 0 ? out : BinaryInto(type, 7, at::kBool, a, b, out);
}
at::Tensor& LogicalAndOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Logical("And", a, b, out);
}
at::Tensor& LogicalOrOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) { return Logical("Or", a, b, out); }
at::Tensor& LogicalXorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Logical("Xor", a, b, out);
}
at::Tensor& LogicalNotOut(const at::Tensor& self, at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  if (out.numel() > 0) KernelCall("Not", 1).In(Dense(self, at::kBool)).Into(out);
  return out;
}

at::Tensor Isnan(const at::Tensor& self) {
  if (KernelCall("IsNaN", 20).Takes(0, self.scalar_type())) return KernelCall("IsNaN", 20).In(Dense(self)).One();
  return self.ne(self);  // no number but NaN differs from itself
}

// Of integers the divisor's sign, of floats too, made from the dividend's.
at::Tensor& RemainderOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_remainder_Tensor>(out, a, b);
  if (out.numel() == 0) return out;
  KernelCall call("Mod", 13);
  if (!call.Takes(0, dtype)) return FallBack<at::_ops::remainder_Tensor_out>(a, b, out);
  const c10::DeviceGuard guard(out.device());  // where a number beside the tensors is sent
  const at::Tensor divisor = Dense(b, dtype);
  call.In(Dense(a, dtype)).In(divisor);
  if (!at::isFloatingType(dtype)) {
    call.Into(out);
    return out;
  }
  const at::Tensor rest = call.Set("fmod", int64_t{1}).One();
  const at::Tensor turns = rest.ne(0).logical_and_(rest.lt(0).ne(divisor.lt(0)));
  return out.copy_(rest.add(divisor).where(turns, rest));
}

at::Tensor& FmodOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_fmod_Tensor>(out, a, b);
  if (out.numel() == 0) return out;
  KernelCall call("Mod", 13);
  if (!call.Takes(0, dtype)) return FallBack<at::_ops::fmod_Tensor_out>(a, b, out);
  const c10::DeviceGuard guard(out.device());  // where a number beside the tensors is sent
  call.In(Dense(a, dtype)).In(Dense(b, dtype)).Set("fmod", int64_t{1}).Into(out);
  return out;
}

at::Tensor& RsqrtOut(const at::Tensor& self, at::Tensor& out) {
  const at::ScalarType dtype = AccumulateType(InferElementwise<at::meta::structured_rsqrt>(out, self));
  if (out.numel() == 0) return out;
  if (!KernelCall("Sqrt", 13).Takes(0, dtype)) return FallBack<at::_ops::rsqrt_out>(self, out);
  KernelCall("Reciprocal", 13).In(KernelCall("Sqrt", 13).In(Dense(self, dtype)).One()).Into(out);
  return out;
}

at::Tensor& GeluOut(const at::Tensor& self, c10::string_view approximate, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_gelu>(out, self, approximate);
  if (out.numel() > 0)
    KernelCall("Gelu", 20).In(Dense(self, dtype)).Set("approximate", std::string(approximate)).Into(out);
  return out;
}

at::Tensor& LeakyReluOut(const at::Tensor& self, const c10::Scalar& slope, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_leaky_relu>(out, self, slope);
  if (out.numel() > 0) KernelCall("LeakyRelu", 16).In(Dense(self, dtype)).Set("alpha", slope.toDouble()).Into(out);
  return out;
}

at::Tensor Relu(const at::Tensor& self) {
  if (!KernelCall("Relu", 14).Takes(0, self.scalar_type())) return FallBack<at::_ops::relu>(self);
  return KernelCall("Relu", 14).In(Dense(self)).One();
}
at::Tensor& ReluInPlace(at::Tensor& self) {
  if (!KernelCall("Relu", 14).Takes(0, self.scalar_type())) return FallBack<at::_ops::relu_>(self);
  if (self.numel() > 0) KernelCall("Relu", 14).In(Dense(self)).Into(self);
  return self;
}

at::Tensor& AbsOut(const at::Tensor& self, at::Tensor& out) {
  if (!KernelCall("Abs", 13).Takes(0, self.scalar_type())) return FallBack<at::_ops::abs_out>(self, out);
  at::native::resize_output(out, self.sizes());
  if (out.numel() > 0) KernelCall("Abs", 13).In(Dense(self)).Into(out);
  return out;
}

at::Tensor& WhereOut(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  const at::ScalarType dtype = at::result_type(self, other);
  TORCH_CHECK(out.scalar_type() == dtype, "Expected out type to be ", dtype, " but got ", out.scalar_type());
  at::native::resize_output(out, at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes()));
  if (out.numel() == 0) return out;
  if (ToDType(dtype) == DType::kUndefined) return FallBack<at::_ops::where_self_out>(condition, self, other, out);
  KernelCall("Where", 16).In(Dense(condition, at::kBool)).In(Dense(self, dtype)).In(Dense(other, dtype)).Into(out);
  return out;
}

at::Tensor Where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const at::Tensor& beside = condition.is_cpu() ? (self.is_cpu() ? other : self) : condition;
  at::Tensor out = Empty({0}, at::result_type(self, other), beside);
  return WhereOut(condition, self, other, out);
}

at::Tensor& MaskedFill(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_fill_ only supports boolean masks, but got mask with dtype ",
              mask.scalar_type());
  TORCH_CHECK(value.dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
              value.dim(), " dimension(s).");
  if (self.numel() == 0) return self;
  if (ToDType(self.scalar_type()) == DType::kUndefined)
    return FallBack<at::_ops::masked_fill__Tensor>(self, mask, value);
  TORCH_CHECK(at::infer_size(mask.sizes(), self.sizes()) == self.sizes(), "expected a mask that broadcasts to ",
              self.sizes(), ", got ", mask.sizes());
  const c10::DeviceGuard guard(self.device());  // where a number beside the tensors is sent
  KernelCall("Where", 16).In(Dense(mask)).In(Dense(value, self.scalar_type())).In(Dense(self)).Into(self);
  return self;
}
at::Tensor& MaskedFillScalar(at::Tensor& self, const at::Tensor& mask, const c10::Scalar& value) {
  return MaskedFill(self, mask, ScalarTensor(value, self.scalar_type(), self));
}

// max(x, low), then min(…, high): NaN stays, and high wins where the bounds cross.
template <class Op, class... Args>
at::Tensor& Clamp(at::ScalarType dtype, const at::Tensor& self, const std::optional<at::Tensor>& low,
                  const std::optional<at::Tensor>& high, at::Tensor& out, const Args&... args) {
  if (out.numel() == 0) return out;
  if (!KernelCall("Max", 13).Takes(0, dtype)) return FallBack<Op>(self, args..., out);
  const c10::DeviceGuard guard(out.device());  // where a number beside the tensors is sent
  at::Tensor raised = Dense(self, dtype);
  if (low) {
    KernelCall call("Max", 13);
    call.In(raised).In(Dense(*low, dtype));
    if (!high) {
      call.Into(out);
      return out;
    }
    raised = call.One();
  }
  KernelCall("Min", 13).In(raised).In(Dense(*high, dtype)).Into(out);
  return out;
}

at::Tensor& ClampOut(const at::Tensor& self, const std::optional<c10::Scalar>& low,
                     const std::optional<c10::Scalar>& high, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp>(
      out, self, low ? at::OptionalScalarRef(*low) : at::OptionalScalarRef(),
      high ? at::OptionalScalarRef(*high) : at::OptionalScalarRef());
  const auto tensor = [&](const std::optional<c10::Scalar>& bound) {
    return bound ? std::optional(ScalarTensor(*bound, dtype, self)) : std::nullopt;
  };
  return Clamp<at::_ops::clamp_out>(dtype, self, tensor(low), tensor(high), out, low, high);
}
at::Tensor& ClampTensorOut(const at::Tensor& self, const std::optional<at::Tensor>& low,
                           const std::optional<at::Tensor>& high, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp_Tensor>(
      out, self, low ? at::OptionalTensorRef(*low) : at::OptionalTensorRef(),
      high ? at::OptionalTensorRef(*high) : at::OptionalTensorRef());
  return Clamp<at::_ops::clamp_Tensor_out>(dtype, self, low, high, out, low, high);
}
at::Tensor& ClampMinOut(const at::Tensor& self, const c10::Scalar& low, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp_min>(out, self, low);
  return Clamp<at::_ops::clamp_min_out>(dtype, self, ScalarTensor(low, dtype, self), std::nullopt, out, low);
}
at::Tensor& ClampMaxOut(const at::Tensor& self, const c10::Scalar& high, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_clamp_max>(out, self, high);
  return Clamp<at::_ops::clamp_max_out>(dtype, self, std::nullopt, ScalarTensor(high, dtype, self), out, high);
}

// self + value * (a * b) or self + value * (a / b): what optimizers do to every parameter.
template <class Meta, class Op>
at::Tensor& AddProduct(const char* type, const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                       const c10::Scalar& value, at::Tensor& out) {
  const at::ScalarType dtype = AccumulateType(InferElementwise<Meta>(out, self, a, b, value));
  if (out.numel() == 0) return out;
  if (!KernelCall("Mul", 14).Takes(0, dtype)) return FallBack<Op>(self, a, b, value, out);
  const c10::DeviceGuard guard(out.device());  // where a number beside the tensors is sent
  at::Tensor product = KernelCall(type, 14).In(Dense(a, dtype)).In(Dense(b, dtype)).One();
  if (!value.equal(1)) product = KernelCall("Mul", 14).In(product).In(ScalarTensor(value, dtype, out)).One();
  return BinaryInto("Add", 14, dtype, self, product, out);
}
at::Tensor& AddcmulOut(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const c10::Scalar& value,
                       at::Tensor& out) {
  return AddProduct<at::meta::structured_addcmul, at::_ops::addcmul_out>("Mul", self, a, b, value, out);
}
at::Tensor& AddcdivOut(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b, const c10::Scalar& value,
                       at::Tensor& out) {
  return AddProduct<at::meta::structured_addcdiv, at::_ops::addcdiv_out>("Div", self, a, b, value, out);
}

at::Tensor& LerpOut(const at::Tensor& self, const at::Tensor& end, const c10::Scalar& weight, at::Tensor& out) {
  const at::ScalarType dtype =
      AccumulateType(InferElementwise<at::meta::structured_lerp_Scalar>(out, self, end, weight));
  if (out.numel() == 0) return out;
  if (!KernelCall("Mul", 14).Takes(0, dtype)) return FallBack<at::_ops::lerp_Scalar_out>(self, end, weight, out);
  const at::Tensor from = Dense(self, dtype), to = Dense(end, dtype);
  const at::Tensor way = KernelCall("Sub", 14).In(to).In(from).One();
  // From the nearer end, so that a weight of 1 gives exactly `end`.
  const double w = weight.toDouble();
  const bool near_end = w >= 0.5;
  const at::Tensor step = KernelCall("Mul", 14).In(way).In(ScalarTensor(near_end ? 1.0 - w : w, dtype, out)).One();
  return near_end ? BinaryInto("Sub", 14, dtype, to, step, out) : BinaryInto("Add", 14, dtype, from, step, out);
}

at::Tensor& ExpOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_exp, at::_ops::exp_out>("Exp", 13, self, out);
}
at::Tensor& LogOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_log, at::_ops::log_out>("Log", 13, self, out);
}
at::Tensor& SqrtOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_sqrt, at::_ops::sqrt_out>("Sqrt", 13, self, out);
}
at::Tensor& SinOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_sin, at::_ops::sin_out>("Sin", 22, self, out);
}
at::Tensor& CosOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_cos, at::_ops::cos_out>("Cos", 22, self, out);
}
at::Tensor& TanhOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_tanh, at::_ops::tanh_out>("Tanh", 13, self, out);
}
at::Tensor& SigmoidOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_sigmoid, at::_ops::sigmoid_out>("Sigmoid", 13, self, out);
}
at::Tensor& ErfOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_erf, at::_ops::erf_out>("Erf", 13, self, out);
}
at::Tensor& ReciprocalOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_reciprocal, at::_ops::reciprocal_out>("Reciprocal", 13, self, out);
}
at::Tensor& NegOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_neg, at::_ops::neg_out>("Neg", 13, self, out);
}
at::Tensor& CeilOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_ceil, at::_ops::ceil_out>("Ceil", 13, self, out);
}
at::Tensor& FloorOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_floor, at::_ops::floor_out>("Floor", 13, self, out);
}
at::Tensor& RoundOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_round, at::_ops::round_out>("Round", 22, self, out);
}
at::Tensor& SignOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_sign, at::_ops::sign_out>("Sign", 13, self, out);
}
at::Tensor& SiluOut(const at::Tensor& self, at::Tensor& out) {
  return Unary<at::meta::structured_silu, at::_ops::silu_out>("Swish", 24, self, out);
}

at::Tensor& MulOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_mul_Tensor, at::_ops::mul_out>({"Mul", 14, "And"}, a, b, out);
}
at::Tensor& DivOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_div_Tensor, at::_ops::div_out>({"Div", 14, nullptr}, a, b, out);
}
at::Tensor& MaximumOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_maximum, at::_ops::maximum_out>({"Max", 13, "Or"}, a, b, out);
}
at::Tensor& MinimumOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_minimum, at::_ops::minimum_out>({"Min", 13, "And"}, a, b, out);
}
at::Tensor& PowOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_pow_Tensor_Tensor, at::_ops::pow_Tensor_Tensor_out>({"Pow", 15, nullptr}, a, b,
                                                                                         out);
}

at::Tensor& EqTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_eq_Tensor, at::_ops::eq_Tensor_out>("Equal", 19, false, a, b, out);
}
at::Tensor& EqScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_eq_Scalar, at::_ops::eq_Scalar_out>("Equal", 19, false, a, b, out);
}
at::Tensor& NeTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_ne_Tensor, at::_ops::ne_Tensor_out>("Equal", 19, true, a, b, out);
}
at::Tensor& NeScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_ne_Scalar, at::_ops::ne_Scalar_out>("Equal", 19, true, a, b, out);
}
at::Tensor& LtTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_lt_Tensor, at::_ops::lt_Tensor_out>("Less", 13, false, a, b, out);
}
at::Tensor& LtScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_lt_Scalar, at::_ops::lt_Scalar_out>("Less", 13, false, a, b, out);
}
at::Tensor& LeTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_le_Tensor, at::_ops::le_Tensor_out>("LessOrEqual", 16, false, a, b, out);
}
at::Tensor& LeScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_le_Scalar, at::_ops::le_Scalar_out>("LessOrEqual", 16, false, a, b, out);
}
at::Tensor& GtTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_gt_Tensor, at::_ops::gt_Tensor_out>("Greater", 13, false, a, b, out);
}
at::Tensor& GtScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_gt_Scalar, at::_ops::gt_Scalar_out>("Greater", 13, false, a, b, out);
}
at::Tensor& GeTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_ge_Tensor, at::_ops::ge_Tensor_out>("GreaterOrEqual", 16, false, a, b,
                                                                                 out);
}
at::Tensor& GeScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_ge_Scalar, at::_ops::ge_Scalar_out>("GreaterOrEqual", 16, false, a, b, out);
}

at::Tensor& BitwiseAndOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Bitwise<at::meta::structured_bitwise_and_Tensor, at::_ops::bitwise_and_Tensor_out>({"BitwiseAnd", 18, "And"},
                                                                                            a, b, out);
}
at::Tensor& BitwiseOrOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Bitwise<at::meta::structured_bitwise_or_Tensor, at::_ops::bitwise_or_Tensor_out>({"BitwiseOr", 18, "Or"}, a, b,
                                                                                          out);
}
at::Tensor& BitwiseXorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Bitwise<at::meta::structured_bitwise_xor_Tensor, at::_ops::bitwise_xor_Tensor_out>({"BitwiseXor", 18, "Xor"},
                                                                                            a, b, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
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
  m.impl("sign.out", &SignOut);
  m.impl("silu.out", &SiluOut);
  m.impl("isnan", &Isnan);
  m.impl("remainder.Tensor_out", &RemainderOut);
  m.impl("fmod.Tensor_out", &FmodOut);
  m.impl("rsqrt.out", &RsqrtOut);
  m.impl("gelu.out", &GeluOut);
  m.impl("leaky_relu.out", &LeakyReluOut);
  m.impl("relu", &Relu);
  m.impl("relu_", &ReluInPlace);
  m.impl("abs.out", &AbsOut);
  m.impl("add.out", &AddOut);
  m.impl("sub.out", &SubOut);
  m.impl("mul.out", &MulOut);
  m.impl("div.out", &DivOut);
  m.impl("pow.Tensor_Tensor_out", &PowOut);
  m.impl("pow.Tensor_Scalar_out", &PowScalarOut);
  m.impl("maximum.out", &MaximumOut);
  m.impl("minimum.out", &MinimumOut);
  m.impl("eq.Tensor_out", &EqTensorOut);
  m.impl("eq.Scalar_out", &EqScalarOut);
  m.impl("ne.Tensor_out", &NeTensorOut);
  m.impl("ne.Scalar_out", &NeScalarOut);
  m.impl("lt.Tensor_out", &LtTensorOut);
  m.impl("lt.Scalar_out", &LtScalarOut);
  m.impl("le.Tensor_out", &LeTensorOut);
  m.impl("le.Scalar_out", &LeScalarOut);
  m.impl("gt.Tensor_out", &GtTensorOut);
  m.impl("gt.Scalar_out", &GtScalarOut);
  m.impl("ge.Tensor_out", &GeTensorOut);
  m.impl("ge.Scalar_out", &GeScalarOut);
  m.impl("bitwise_and.Tensor_out", &BitwiseAndOut);
  m.impl("logical_and.out", &LogicalAndOut);
  m.impl("bitwise_or.Tensor_out", &BitwiseOrOut);
  m.impl("logical_or.out", &LogicalOrOut);
  m.impl("bitwise_xor.Tensor_out", &BitwiseXorOut);
  m.impl("logical_xor.out", &LogicalXorOut);
  m.impl("bitwise_not.out", &BitwiseNotOut);
  m.impl("logical_not.out", &LogicalNotOut);
  m.impl("isneginf.out", &IsneginfOut);
  m.impl("isposinf.out", &IsposinfOut);
  m.impl("where.self", &Where);
  m.impl("where.self_out", &WhereOut);
  m.impl("masked_fill_.Scalar", &MaskedFillScalar);
  m.impl("masked_fill_.Tensor", &MaskedFill);
  m.impl("clamp.out", &ClampOut);
  m.impl("clamp.Tensor_out", &ClampTensorOut);
  m.impl("clamp_min.out", &ClampMinOut);
  m.impl("clamp_max.out", &ClampMaxOut);
  m.impl("addcmul.out", &AddcmulOut);
  m.impl("addcdiv.out", &AddcdivOut);
  m.impl("lerp.Scalar_out", &LerpOut);
}

}  // namespace

at::Tensor& BinaryInto(const char* type, int since_version, at::ScalarType dtype, const at::Tensor& a,
                       const at::Tensor& b, at::Tensor& out) {
  const c10::DeviceGuard guard(out.device());  // where a number beside the tensors is sent
  KernelCall(type, since_version).In(Dense(a, dtype)).In(Dense(b, dtype)).Into(out);
  return out;
}

}  // namespace npu::aten

// Arithmetic and bitwise operators on two or more tensors, and the products of vectors of three.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add_meta.h>
#include <ATen/ops/addcdiv_meta.h>
#include <ATen/ops/addcmul_meta.h>
#include <ATen/ops/bitwise_and_meta.h>
#include <ATen/ops/bitwise_or_meta.h>
#include <ATen/ops/bitwise_xor_meta.h>
#include <ATen/ops/div_meta.h>
#include <ATen/ops/fmax_meta.h>
#include <ATen/ops/fmax_ops.h>
#include <ATen/ops/fmin_meta.h>
#include <ATen/ops/fmin_ops.h>
#include <ATen/ops/fmod_meta.h>
#include <ATen/ops/lerp_meta.h>
#include <ATen/ops/linalg_cross_meta.h>
#include <ATen/ops/maximum_meta.h>
#include <ATen/ops/minimum_meta.h>
#include <ATen/ops/mul_meta.h>
#include <ATen/ops/pow_meta.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/remainder_meta.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sub_meta.h>
#include <torch/library.h>

#include "python/csrc/torch/complex_parts.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// An arithmetic kernel and its counterpart for bool.
struct Arithmetic {
  const char* type;
  const char* logical;  // null: none
};

template <class Op, class... Args>
at::Tensor& Compute(const Arithmetic& kernel, at::ScalarType common, const at::Tensor& a, const at::Tensor& b,
                    at::Tensor& out, const Args&... args) {
  if (out.numel() == 0) return out;
  if (at::isComplexType(common) && ComplexInto(kernel.type, common, a, b, out)) return out;
  if (common == at::kBool && kernel.logical != nullptr) return BinaryInto(kernel.logical, at::kBool, a, b, out);
  const at::ScalarType dtype = ComputeType(common, a, b);
  // What kernels do not compute of small integers has the same low bits in int64.
  if (at::isIntegralType(dtype, /*includeBool=*/false) && !KernelCall(kernel.type).Takes(0, dtype) &&
      KernelCall(kernel.type).Takes(0, at::kLong))
    return BinaryInto(kernel.type, at::kLong, Dense(a, dtype), Dense(b, dtype), out);
  if (!KernelCall(kernel.type).Takes(0, dtype)) return FallBack<Op>(args..., out);
  return BinaryInto(kernel.type, dtype, a, b, out);
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
  if (at::isComplexType(common) && out.numel() > 0) {
    ComplexInto(kernel.type, common, self, other.mul(alpha), out);
    return out;
  }
  const at::ScalarType dtype = AccumulateType(common);
  KernelCall scale("Mul");
  if (out.numel() == 0) return out;
  if (!scale.Takes(0, dtype)) return FallBack<Op>(self, other, alpha, out);
  const at::Tensor scaled = scale.In(Dense(other, dtype)).In(ScalarTensor(alpha, dtype, out)).One();
  return BinaryInto(kernel.type, dtype, self, scaled, out);
}

at::Tensor& AddOut(const at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha, at::Tensor& out) {
  return Sum<at::meta::structured_add_Tensor, at::_ops::add_out>({"Add", "Or"}, self, other, alpha, out);
}
at::Tensor& SubOut(const at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha, at::Tensor& out) {
  return Sum<at::meta::structured_sub_Tensor, at::_ops::sub_out>({"Sub", nullptr}, self, other, alpha, out);
}

at::Tensor Reversed(const at::Tensor& self, const at::Tensor& other, const c10::Scalar& alpha) {
  return other.sub(self, alpha);
}

at::Tensor& PowScalarOut(const at::Tensor& self, const c10::Scalar& exponent, at::Tensor& out) {
  const at::ScalarType common = InferElementwise<at::meta::structured_pow_Tensor_Scalar>(out, self, exponent);
  const at::ScalarType dtype = AccumulateType(common);
  if (out.numel() == 0) return out;
  // A square is exact and cheaper as a multiplication.
  if (exponent.equal(2) && at::isComplexType(common)) {
    ComplexInto("Mul", common, self, self, out);
    return out;
  }
  if (exponent.equal(2) && KernelCall("Mul").Takes(0, dtype)) {
    const at::Tensor base = Dense(self, common);
    KernelCall("Mul").In(base).In(base).Into(out);
    return out;
  }
  if (!KernelCall("Pow").Takes(0, dtype)) return FallBack<at::_ops::pow_Tensor_Scalar_out>(self, exponent, out);
  return BinaryInto("Pow", dtype, self, ScalarTensor(exponent, dtype, self), out);
}

template <class Meta, class Op>
at::Tensor& Bitwise(const Arithmetic& kernel, const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Compute<Op>(kernel, InferElementwise<Meta>(out, a, b), a, b, out, a, b);
}

// The result has the divisor's sign. For floats it is derived from fmod, whose result has the dividend's.
at::Tensor& RemainderOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  const at::ScalarType dtype = InferElementwise<at::meta::structured_remainder_Tensor>(out, a, b);
  if (out.numel() == 0) return out;
  KernelCall call("Mod");
  if (!call.Takes(0, dtype)) return FallBack<at::_ops::remainder_Tensor_out>(a, b, out);
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
  KernelCall call("Mod");
  if (!call.Takes(0, dtype)) return FallBack<at::_ops::fmod_Tensor_out>(a, b, out);
  call.In(Dense(a, dtype)).In(Dense(b, dtype)).Set("fmod", int64_t{1}).Into(out);
  return out;
}

at::Tensor& PowOfScalarOut(const c10::Scalar& base, const at::Tensor& exponent, at::Tensor& out) {
  const at::ScalarType common = at::result_type(base, exponent);
  at::native::resize_output(out, exponent.sizes());
  if (out.numel() == 0) return out;
  const at::ScalarType dtype = AccumulateType(common);
  if (out.scalar_type() != common || !KernelCall("Pow").Takes(0, dtype))
    return FallBack<at::_ops::pow_Scalar_out>(base, exponent, out);
  return BinaryInto("Pow", dtype, ScalarTensor(base, dtype, out), exponent, out);
}

// self + value * (a * b) or self + value * (a / b), as optimizers compute for every parameter.
template <class Meta, class Op>
at::Tensor& AddProduct(const char* type, const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                       const c10::Scalar& value, at::Tensor& out) {
  const at::ScalarType dtype = AccumulateType(InferElementwise<Meta>(out, self, a, b, value));
  if (out.numel() == 0) return out;
  if (!KernelCall("Mul").Takes(0, dtype)) return FallBack<Op>(self, a, b, value, out);
  at::Tensor product = KernelCall(type).In(Dense(a, dtype)).In(Dense(b, dtype)).One();
  if (!value.equal(1)) product = KernelCall("Mul").In(product).In(ScalarTensor(value, dtype, out)).One();
  return BinaryInto("Add", dtype, self, product, out);
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
  if (!KernelCall("Mul").Takes(0, dtype)) return FallBack<at::_ops::lerp_Scalar_out>(self, end, weight, out);
  const at::Tensor from = Dense(self, dtype), to = Dense(end, dtype);
  const at::Tensor way = KernelCall("Sub").In(to).In(from).One();
  // Starts from the nearer end, so that a weight of 1 gives exactly `end`.
  const double w = weight.toDouble();
  const bool near_end = w >= 0.5;
  const at::Tensor step = KernelCall("Mul").In(way).In(ScalarTensor(near_end ? 1.0 - w : w, dtype, out)).One();
  return near_end ? BinaryInto("Sub", dtype, to, step, out) : BinaryInto("Add", dtype, from, step, out);
}

at::Tensor& MulOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_mul_Tensor, at::_ops::mul_out>({"Mul", "And"}, a, b, out);
}
at::Tensor& DivOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_div_Tensor, at::_ops::div_out>({"Div", nullptr}, a, b, out);
}
at::Tensor& MaximumOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_maximum, at::_ops::maximum_out>({"Max", "Or"}, a, b, out);
}
at::Tensor& MinimumOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_minimum, at::_ops::minimum_out>({"Min", "And"}, a, b, out);
}
// Integers have no NaN that the other number would replace.
at::Tensor& FmaxOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!at::isFloatingType(at::result_type(a, b)))
    return Binary<at::meta::structured_fmax, at::_ops::fmax_out>({"Max", "Or"}, a, b, out);
  return Elementwise<at::meta::structured_fmax, at::_ops::fmax_out>(Aten("FMax"), {a, b}, out, a, b);
}
at::Tensor& FminOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!at::isFloatingType(at::result_type(a, b)))
    return Binary<at::meta::structured_fmin, at::_ops::fmin_out>({"Min", "And"}, a, b, out);
  return Elementwise<at::meta::structured_fmin, at::_ops::fmin_out>(Aten("FMin"), {a, b}, out, a, b);
}
at::Tensor& PowOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Binary<at::meta::structured_pow_Tensor_Tensor, at::_ops::pow_Tensor_Tensor_out>({"Pow", nullptr}, a, b, out);
}

at::Tensor& BitwiseAndOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Bitwise<at::meta::structured_bitwise_and_Tensor, at::_ops::bitwise_and_Tensor_out>({"BitwiseAnd", "And"}, a, b,
                                                                                            out);
}
at::Tensor& BitwiseOrOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Bitwise<at::meta::structured_bitwise_or_Tensor, at::_ops::bitwise_or_Tensor_out>({"BitwiseOr", "Or"}, a, b,
                                                                                          out);
}
at::Tensor& BitwiseXorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Bitwise<at::meta::structured_bitwise_xor_Tensor, at::_ops::bitwise_xor_Tensor_out>({"BitwiseXor", "Xor"}, a, b,
                                                                                            out);
}

at::Tensor& CrossOut(const at::Tensor& self, const at::Tensor& other, int64_t dim, at::Tensor& out) {
  Infer<at::meta::structured_linalg_cross>(out, self, other, dim);
  if (out.numel() == 0) return out;
  const at::Tensor a = self.expand(out.sizes()), b = other.expand(out.sizes());
  return out.copy_(a.roll(-1, dim).mul(b.roll(-2, dim)).sub(a.roll(-2, dim).mul(b.roll(-1, dim))));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("linalg_cross.out", &CrossOut);
  m.impl("remainder.Tensor_out", &RemainderOut);
  m.impl("fmod.Tensor_out", &FmodOut);
  m.impl("add.out", &AddOut);
  m.impl("sub.out", &SubOut);
  m.impl("mul.out", &MulOut);
  m.impl("div.out", &DivOut);
  m.impl("pow.Tensor_Tensor_out", &PowOut);
  m.impl("pow.Tensor_Scalar_out", &PowScalarOut);
  m.impl("pow.Scalar_out", &PowOfScalarOut);
  m.impl("rsub.Tensor", &Reversed);
  m.impl("fmax.out", &FmaxOut);
  m.impl("fmin.out", &FminOut);
  m.impl("maximum.out", &MaximumOut);
  m.impl("minimum.out", &MinimumOut);
  m.impl("bitwise_and.Tensor_out", &BitwiseAndOut);
  m.impl("bitwise_or.Tensor_out", &BitwiseOrOut);
  m.impl("bitwise_xor.Tensor_out", &BitwiseXorOut);
  m.impl("addcmul.out", &AddcmulOut);
  m.impl("addcdiv.out", &AddcdivOut);
  m.impl("lerp.Scalar_out", &LerpOut);
}

}  // namespace

at::Tensor& BinaryInto(const char* type, at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b,
                       at::Tensor& out) {
  KernelCall(type).In(Dense(a, dtype)).In(Dense(b, dtype)).Into(out);
  return out;
}

}  // namespace npu::aten

// Comparisons and logical operators.
#include <ATen/ExpandUtils.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/eq_meta.h>
#include <ATen/ops/ge_meta.h>
#include <ATen/ops/gt_meta.h>
#include <ATen/ops/le_meta.h>
#include <ATen/ops/lt_meta.h>
#include <ATen/ops/ne_meta.h>
#include <torch/library.h>

#include <string_view>

#include "python/csrc/torch/complex_parts.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

// Complex numbers are equal if both parts are; others have an imaginary part of 0.
at::Tensor& CompareComplex(bool negate, at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b,
                           at::Tensor& out) {
  const ComplexParts x = ComplexParts::Of(a, dtype, out), y = ComplexParts::Of(b, dtype, out);
  const at::Tensor im = x.HasTwo() && y.HasTwo() ? x.im.eq(y.im) : (x.HasTwo() ? x.im : y.im).eq(0);
  const at::Tensor equal = x.re.eq(y.re).logical_and(im);
  return out.copy_(negate ? equal.logical_not() : equal);
}

// Bools are compared as the numbers 0 and 1.
template <class Op, class... Args>
at::Tensor& Compare(const char* type, bool negate, at::ScalarType common, const at::Tensor& a, const at::Tensor& b,
                    at::Tensor& out, const Args&... args) {
  if (out.numel() == 0) return out;
  if (at::isComplexType(common) && std::string_view(type) == "Equal") return CompareComplex(negate, common, a, b, out);
  const at::ScalarType dtype = common == at::kBool ? at::kByte : common;
  KernelCall call(type);
  if (!call.Takes(0, dtype)) return FallBack<Op>(args..., out);
  call.In(Dense(a, dtype)).In(Dense(b, dtype));
  if (!negate) {
    call.Into(out);
  } else {
    KernelCall("Not").In(call.One()).Into(out);
  }
  return out;
}

template <class Meta, class Op>
at::Tensor& CompareTensors(const char* type, bool negate, const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Compare<Op>(type, negate, InferElementwise<Meta>(out, a, b), a, b, out, a, b);
}

// As in torch's comparisons, a number that an integer type cannot hold wraps around.
c10::Scalar Wrapped(const c10::Scalar& number, at::ScalarType dtype) {
  if (!number.isIntegral(/*includeBool=*/false)) return number;
  const int64_t n = number.toLong();
  switch (dtype) {
    case at::kByte:
      return static_cast<uint8_t>(n);
    case at::kChar:
      return static_cast<int8_t>(n);
    case at::kUInt16:
      return static_cast<uint16_t>(n);
    case at::kShort:
      return static_cast<int16_t>(n);
    case at::kUInt32:
      return static_cast<uint32_t>(n);
    case at::kInt:
      return static_cast<int32_t>(n);
    default:
      return number;
  }
}

template <class Meta, class Op>
at::Tensor& CompareScalar(const char* type, bool negate, const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  const at::ScalarType common = InferElementwise<Meta>(out, a, b);
  if (at::isComplexType(common)) return Compare<Op>(type, negate, common, a, c10::scalar_to_tensor(b), out, a, b);
  if (ToDType(common) == DType::kUndefined) return FallBack<Op>(a, b, out);
  return Compare<Op>(type, negate, common, a, ScalarTensor(Wrapped(b, common), common, a), out, a, b);
}

at::Tensor& Logical(const char* type, const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  InferBroadcast(out, {a, b});
  return out.numel() == 0 ? out : BinaryInto(type, at::kBool, a, b, out);
}
at::Tensor& LogicalAndOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Logical("And", a, b, out);
}
at::Tensor& LogicalOrOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) { return Logical("Or", a, b, out); }
at::Tensor& LogicalXorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return Logical("Xor", a, b, out);
}

at::Tensor& EqTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_eq_Tensor, at::_ops::eq_Tensor_out>("Equal", false, a, b, out);
}
at::Tensor& EqScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_eq_Scalar, at::_ops::eq_Scalar_out>("Equal", false, a, b, out);
}
at::Tensor& NeTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_ne_Tensor, at::_ops::ne_Tensor_out>("Equal", true, a, b, out);
}
at::Tensor& NeScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_ne_Scalar, at::_ops::ne_Scalar_out>("Equal", true, a, b, out);
}
at::Tensor& LtTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_lt_Tensor, at::_ops::lt_Tensor_out>("Less", false, a, b, out);
}
at::Tensor& LtScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_lt_Scalar, at::_ops::lt_Scalar_out>("Less", false, a, b, out);
}
at::Tensor& LeTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_le_Tensor, at::_ops::le_Tensor_out>("LessOrEqual", false, a, b, out);
}
at::Tensor& LeScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_le_Scalar, at::_ops::le_Scalar_out>("LessOrEqual", false, a, b, out);
}
at::Tensor& GtTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_gt_Tensor, at::_ops::gt_Tensor_out>("Greater", false, a, b, out);
}
at::Tensor& GtScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_gt_Scalar, at::_ops::gt_Scalar_out>("Greater", false, a, b, out);
}
at::Tensor& GeTensorOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return CompareTensors<at::meta::structured_ge_Tensor, at::_ops::ge_Tensor_out>("GreaterOrEqual", false, a, b, out);
}
at::Tensor& GeScalarOut(const at::Tensor& a, const c10::Scalar& b, at::Tensor& out) {
  return CompareScalar<at::meta::structured_ge_Scalar, at::_ops::ge_Scalar_out>("GreaterOrEqual", false, a, b, out);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
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
  m.impl("logical_and.out", &LogicalAndOut);
  m.impl("logical_or.out", &LogicalOrOut);
  m.impl("logical_xor.out", &LogicalXorOut);
}

}  // namespace
}  // namespace npu::aten

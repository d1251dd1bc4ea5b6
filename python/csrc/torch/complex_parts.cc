#include "python/csrc/torch/complex_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/view_as_real.h>

#include <string_view>

#include "python/csrc/torch/kernel_call.h"

namespace npu::aten {
namespace {

ComplexParts SumOfParts(const ComplexParts& a, const ComplexParts& b) {
  if (!a.HasTwo()) return {a.re + b.re, b.im};
  return {a.re + b.re, b.HasTwo() ? a.im + b.im : a.im};
}

ComplexParts DifferenceOfParts(const ComplexParts& a, const ComplexParts& b) {
  return SumOfParts(a, {-b.re, b.HasTwo() ? -b.im : at::Tensor()});
}

ComplexParts ProductOfParts(const ComplexParts& a, const ComplexParts& b) {
  if (!a.HasTwo() && !b.HasTwo()) return {a.re * b.re, {}};
  if (!b.HasTwo()) return {a.re * b.re, a.im * b.re};
  if (!a.HasTwo()) return ProductOfParts(b, a);
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// The divisor is brought near 1 first, so that its square neither overflows nor vanishes.
ComplexParts QuotientOfParts(const ComplexParts& a, const ComplexParts& b) {
  if (!b.HasTwo()) return {a.re / b.re, a.HasTwo() ? a.im / b.re : at::Tensor()};
  const at::Tensor size = at::maximum(b.re.abs(), b.im.abs());
  const ComplexParts near{b.re / size, b.im / size};
  const ComplexParts turned = ProductOfParts(a, {near.re, -near.im});
  const at::Tensor square = (near.re * near.re + near.im * near.im) * size;
  return {turned.re / square, turned.im / square};
}

}  // namespace

ComplexParts ComplexParts::Of(const at::Tensor& t) {
  const at::Tensor pairs = at::view_as_real(t.resolve_conj().resolve_neg());
  return {pairs.select(-1, 0), pairs.select(-1, 1)};
}

ComplexParts ComplexParts::Of(const at::Tensor& t, at::ScalarType dtype, const at::Tensor& beside) {
  const at::ScalarType real = c10::toRealValueType(dtype);
  if (IsHostScalar(t)) {
    const c10::complex<double> number = t.item().toComplexDouble();
    return {ScalarTensor(number.real(), real, beside),
            t.is_complex() ? ScalarTensor(number.imag(), real, beside) : at::Tensor()};
  }
  if (!t.is_complex()) return {t.to(real), {}};
  const ComplexParts parts = Of(t);
  return {parts.re.to(real), parts.im.to(real)};
}

at::Tensor& ComplexParts::Into(at::Tensor& out) const {
  const ComplexParts to = Of(out);
  to.re.copy_(re);
  HasTwo() ? to.im.copy_(im) : to.im.zero_();
  return out;
}

bool ComplexInto(const char* type, at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  const std::string_view name = type;
  ComplexParts (*const compute)(const ComplexParts&, const ComplexParts&) = name == "Add"   ? &SumOfParts
                                                                            : name == "Sub" ? &DifferenceOfParts
                                                                            : name == "Mul" ? &ProductOfParts
                                                                            : name == "Div" ? &QuotientOfParts
                                                                                            : nullptr;
  if (compute == nullptr) return false;
  const ComplexParts left = ComplexParts::Of(a, dtype, out), right = ComplexParts::Of(b, dtype, out);
  compute(left, right).Into(out);
  return true;
}

}  // namespace npu::aten

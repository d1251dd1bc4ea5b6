// Functions of complex numbers, and of the real ones that they are made of.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/atan2.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include <numbers>

#include "python/csrc/torch/complex_parts.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::Tensor& ConjugateOut(const at::Tensor& self, at::Tensor& out) {
  CheckOutputType(out, self.scalar_type());
  at::native::resize_output(out, self.sizes());
  if (!out.is_same(self)) out.copy_(self);
  if (self.is_complex()) at::view_as_real(out).select(-1, 1).neg_();
  return out;
}
at::Tensor Conjugate(const at::Tensor& self) {
  at::Tensor out = self.clone();
  return ConjugateOut(out, out);
}
at::Tensor& ConjugateInPlace(at::Tensor& self) { return ConjugateOut(self, self); }

void CheckParts(const char* op, const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  TORCH_CHECK(a.is_floating_point() && a.scalar_type() == b.scalar_type(), op,
              "() expected two tensors of one float type, got ", a.scalar_type(), " and ", b.scalar_type());
  TORCH_CHECK(out.scalar_type() == c10::toComplexType(a.scalar_type()), "Expected object of scalar type ",
              c10::toComplexType(a.scalar_type()), " but got scalar type ", out.scalar_type(), " for argument 'out'");
  InferBroadcast(out, {a, b});
}
at::Tensor& ComplexOut(const at::Tensor& re, const at::Tensor& im, at::Tensor& out) {
  CheckParts("complex", re, im, out);
  return ComplexParts{re, im}.Into(out);
}
at::Tensor& PolarOut(const at::Tensor& size, const at::Tensor& angle, at::Tensor& out) {
  CheckParts("polar", size, angle, out);
  return ComplexParts{size * angle.cos(), size * angle.sin()}.Into(out);
}

// Of real numbers 0 or pi, by their sign; of NaN itself.
at::Tensor Angle(const at::Tensor& self) {
  if (self.is_complex()) {
    const ComplexParts parts = ComplexParts::Of(self);
    return at::atan2(parts.im, parts.re);
  }
  const at::Tensor x = self.is_floating_point() ? self : self.to(c10::get_default_dtype_as_scalartype());
  const at::Tensor turned = x.lt(0).to(x.scalar_type()) * std::numbers::pi;
  return x.where(x.isnan(), turned);
}
at::Tensor& AngleOut(const at::Tensor& self, at::Tensor& out) {
  const at::Tensor angle = Angle(self);
  CheckCast(angle.scalar_type(), out);
  at::native::resize_output(out, angle.sizes());
  return out.copy_(angle);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_conj_physical", &Conjugate);
  m.impl("conj_physical_", &ConjugateInPlace);
  m.impl("conj_physical.out", &ConjugateOut);
  m.impl("complex.out", &ComplexOut);
  m.impl("polar.out", &PolarOut);
  m.impl("angle", &Angle);
  m.impl("angle.out", &AngleOut);
}

}  // namespace
}  // namespace npu::aten

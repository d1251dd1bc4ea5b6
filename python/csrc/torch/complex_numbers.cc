// Conjugates of complex numbers in place of lazy ones.
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

at::Tensor& ConjugateOut(const at::Tensor& self, at::Tensor& out) {
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

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_conj_physical", &Conjugate);
  m.impl("conj_physical_", &ConjugateInPlace);
  m.impl("conj_physical.out", &ConjugateOut);
}

}  // namespace
}  // namespace npu::aten

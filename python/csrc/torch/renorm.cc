// Slices along one dimension, scaled to norms of at most a bound.
#include <ATen/TensorOperators.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/renorm_meta.h>
#include <torch/library.h>

#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::Tensor& RenormOut(const at::Tensor& self, const c10::Scalar& p, int64_t dim, const c10::Scalar& most,
                      at::Tensor& out) {
  Infer<at::meta::structured_renorm>(out, self, p, dim, most);
  std::vector<int64_t> others;
  for (int64_t d = 0; d < self.dim(); ++d)
    if (d != at::maybe_wrap_dim(dim, self.dim())) others.push_back(d);
  const at::Tensor x = Wide(self), norms = at::linalg_vector_norm(x, p, others, /*keepdim=*/true);
  // The summand is torch's: no norm ends above the bound by rounding.
  const at::Tensor scale = (most.toDouble() / (norms + 1e-7)).masked_fill(norms.le(most), 1);
  return out.copy_(x * scale);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("renorm.out", &RenormOut);
}

}  // namespace
}  // namespace npu::aten

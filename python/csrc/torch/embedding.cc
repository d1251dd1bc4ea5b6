// Rows of an embedding brought down to a norm, as max_norm asks for.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/library.h>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

// A row that is looked up several times is written several times, with the same values.
at::Tensor& EmbeddingRenorm(at::Tensor& self, const at::Tensor& indices, double max_norm, double norm_type) {
  TORCH_CHECK(self.dim() == 2, "embedding_renorm_ expected a weight of two dimensions, got ", self.sizes());
  TORCH_CHECK(indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt,
              "embedding_renorm_ expected int32 or int64 indices, got ", indices.scalar_type());
  if (indices.numel() == 0) return self;
  const at::Tensor places = indices.reshape({-1});
  const at::Tensor rows = Wide(self.index_select(0, places));
  const at::Tensor norms = at::linalg_vector_norm(rows, norm_type, at::IntArrayRef{1}, /*keepdim=*/true);
  const at::Tensor scaled = rows * (max_norm / (norms + 1e-7));
  return self.index_copy_(0, places, scaled.where(norms.gt(max_norm), rows).to(self.scalar_type()));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) { Operators(library).impl("embedding_renorm_", &EmbeddingRenorm); }

}  // namespace
}  // namespace npu::aten

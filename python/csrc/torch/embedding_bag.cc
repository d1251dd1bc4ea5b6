// Sums, means and max over bags of an embedding's rows. Bags and row indices are checked when the kernel runs.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_embedding_bag_backward_ops.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

enum BagMode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

at::Tensor CheckedIndices(const char* name, const at::Tensor& t) {
  TORCH_CHECK(t.scalar_type() == at::kLong || t.scalar_type() == at::kInt, "embedding_bag: expected int32 or int64 ",
              name, ", got ", t.scalar_type());
  TORCH_CHECK(t.dim() == 1, "embedding_bag: expected ", name, " of one dimension, got ", t.sizes());
  return Dense(t, at::kLong);
}

void CheckMode(int64_t mode, const MaybeTensor& factors, const at::Tensor& indices) {
  TORCH_CHECK(mode >= kSum && mode <= kMax, "embedding_bag: expected mode 0, 1 or 2, got ", mode);
  TORCH_CHECK(!Has(factors) || mode == kSum, "embedding_bag: per_sample_weights only supported with mode='sum'");
  TORCH_CHECK(!Has(factors) || factors->sizes() == indices.sizes(),
              "embedding_bag: expected per_sample_weights of the indices' shape ", indices.sizes());
}

Four EmbeddingBag(const at::Tensor& weight, const at::Tensor& given_indices, const at::Tensor& given_offsets, bool,
                  int64_t mode, bool, const MaybeTensor& factors, bool closed, int64_t padding) {
  const at::Tensor indices = CheckedIndices("indices", given_indices),
                   offsets = CheckedIndices("offsets", given_offsets);
  CheckMode(mode, factors, indices);
  TORCH_CHECK(weight.dim() == 2 && KernelCall("EmbeddingBag", "npu.aten").Takes(0, weight.scalar_type()),
              "embedding_bag: expected a weight of two dimensions of floats, got ", weight.sizes(), " of ",
              weight.scalar_type());
  TORCH_CHECK(!closed || offsets.numel() > 0, "include_last_offset: numel of offsets must be at least 1");
  TORCH_CHECK(offsets.numel() > 0 || indices.numel() == 0, "embedding_bag: expected offsets for ", indices.numel(),
              " indices, got none");
  if (padding < -1) padding += weight.size(0);
  KernelCall call("EmbeddingBag", "npu.aten");
  call.In(Dense(weight)).In(indices).In(offsets);
  if (Has(factors)) call.In(Dense(*factors, weight.scalar_type()));
  call.Set("mode", mode).Set("include_last_offset", int64_t{closed}).Set("padding_idx", padding);
  const std::vector<at::Tensor> results = call.Run(4);
  return {results[0], results[1], results[2], results[3]};
}

// For each index, its bag's row of `grad`, in float.
at::Tensor OfBags(const at::Tensor& grad, const at::Tensor& bag_of) {
  return Wide(grad).index_select(0, bag_of.clamp_min(0));
}

at::Tensor DenseBackward(const at::Tensor& grad, const at::Tensor& given_indices, const at::Tensor& bag_of,
                         const at::Tensor& sizes, const at::Tensor& best, int64_t rows, bool scale_by_frequency,
                         int64_t mode, const MaybeTensor& factors, int64_t padding) {
  const at::Tensor indices = CheckedIndices("indices", given_indices);
  CheckMode(mode, factors, indices);
  at::Tensor sums = at::zeros({rows, grad.size(1)}, Wide(grad).options());
  if (indices.numel() == 0 || grad.numel() == 0) return sums.to(grad.scalar_type());
  if (mode == kMax) {
    const at::Tensor none = best.lt(0);
    return sums.scatter_add_(0, best.clamp_min(0), Wide(grad).masked_fill(none, 0)).to(grad.scalar_type());
  }
  at::Tensor parts = OfBags(grad, bag_of);
  const auto scale = [&](const at::Tensor& by) { parts = parts * by.to(parts.scalar_type()).unsqueeze(1); };
  if (mode == kMean)
    scale(sizes.clamp_min(1).to(parts.scalar_type()).reciprocal().index_select(0, bag_of.clamp_min(0)));
  if (Has(factors)) scale(*factors);
  if (scale_by_frequency) {
    const at::Tensor ones = at::zeros({indices.numel()}, parts.options()).fill_(1);
    const at::Tensor counts = at::zeros({rows}, parts.options()).index_add_(0, indices, ones);
    scale(counts.index_select(0, indices).reciprocal());
  }
  at::Tensor unused = bag_of.lt(0);
  if (padding >= 0) unused = unused.logical_or(indices.eq(padding));
  parts = parts.masked_fill(unused.unsqueeze(1), 0);
  return sums.index_add_(0, indices, parts).to(grad.scalar_type());
}

at::Tensor FactorsBackward(const at::Tensor& grad, const at::Tensor& weight, const at::Tensor& given_indices,
                           const at::Tensor&, const at::Tensor& bag_of, int64_t mode, int64_t padding) {
  TORCH_CHECK(mode == kSum, "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
  const at::Tensor indices = CheckedIndices("indices", given_indices);
  const at::Tensor products = OfBags(grad, bag_of) * Wide(weight).index_select(0, indices);
  at::Tensor unused = bag_of.lt(0);
  if (padding >= 0) unused = unused.logical_or(indices.eq(padding));
  return products.sum({1}).masked_fill(unused, 0).to(grad.scalar_type());
}

at::Tensor EmbeddingBagBackward(const at::Tensor& grad, const at::Tensor& indices, const at::Tensor& offsets,
                                const at::Tensor& bag_of, const at::Tensor& sizes, const at::Tensor& best, int64_t rows,
                                bool scale_by_frequency, int64_t mode, bool sparse, const MaybeTensor& factors,
                                int64_t padding) {
  if (sparse)
    return FallBack<at::_ops::_embedding_bag_backward>(grad, indices, offsets, bag_of, sizes, best, rows,
                                                       scale_by_frequency, mode, sparse, factors, padding);
  return DenseBackward(grad, indices, bag_of, sizes, best, rows, scale_by_frequency, mode, factors, padding);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_embedding_bag", &EmbeddingBag);
  m.impl("_embedding_bag_forward_only", &EmbeddingBag);
  m.impl("_embedding_bag_backward", &EmbeddingBagBackward);
  m.impl("_embedding_bag_dense_backward", &DenseBackward);
  m.impl("_embedding_bag_per_sample_weights_backward", &FactorsBackward);
}

}  // namespace
}  // namespace npu::aten

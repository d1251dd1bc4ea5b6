// The operators that torch.nn calls for attention or a whole encoder layer in inference, composed of their parts.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

// Which scores [batch, heads, queries, keys] a mask of torch.nn blocks. The mask is over queries and keys, over a
// batch's keys, or over all four dimensions; one of floats blocks where it is not 0, as in torch's own kernels.
at::Tensor Blocked(const at::Tensor& mask, std::optional<int64_t> type) {
  enum { kSource = 0, kPadding = 1, kBoth = 2 };
  TORCH_CHECK(type && *type >= kSource && *type <= kBoth, "expected mask_type to be 0, 1 or 2 where there is a mask");
  const int64_t rank = *type == kBoth ? 4 : 2;
  TORCH_CHECK(mask.dim() == rank, "expected a mask of ", rank, " dimensions for mask_type ", *type, ", got ",
              mask.sizes());
  const at::Tensor blocked = mask.to(at::kBool);
  return *type == kPadding ? blocked.unsqueeze(1).unsqueeze(1) : blocked;
}

std::tuple<at::Tensor, at::Tensor> MultiHeadAttention(const at::Tensor& query, const at::Tensor& key,
                                                      const at::Tensor& value, int64_t width, int64_t heads,
                                                      const at::Tensor& weight, const at::Tensor& bias,
                                                      const at::Tensor& out_weight, const at::Tensor& out_bias,
                                                      const MaybeTensor& mask, bool need_weights, bool average,
                                                      std::optional<int64_t> mask_type) {
  for (const at::Tensor& t : {query, key, value})
    TORCH_CHECK(t.dim() == 3, "expected query, key and value of 3 dimensions, got ", t.sizes());
  TORCH_CHECK(heads > 0 && width % heads == 0, "expected embed_dim to be a multiple of num_head, got ", width, " and ",
              heads);
  std::vector<at::Tensor> projected;
  if (key.is_same(query) && value.is_same(query)) {
    projected = at::linear(query, weight, bias).chunk(3, -1);
  } else {
    const std::vector<at::Tensor> weights = weight.chunk(3), biases = bias.chunk(3);
    size_t i = 0;
    for (const at::Tensor& t : {query, key, value}) {
      projected.push_back(at::linear(t, weights[i], biases[i]));
      ++i;
    }
  }
  for (at::Tensor& t : projected) t = t.unflatten(-1, {heads, width / heads}).transpose(1, 2);
  const at::Tensor &q = projected[0], &k = projected[1], &v = projected[2];
  const at::Tensor blocked = Has(mask) ? Blocked(*mask, mask_type) : at::Tensor();
  at::Tensor mixed, shares;
  if (need_weights) {
    at::Tensor scores = q.matmul(k.transpose(-2, -1)) / std::sqrt(static_cast<double>(width / heads));
    if (blocked.defined()) scores = scores.masked_fill(blocked, -std::numeric_limits<double>::infinity());
    shares = scores.softmax(-1);
    mixed = shares.matmul(v);
    if (average) shares = shares.mean(1);
  } else {
    const MaybeTensor counted = blocked.defined() ? MaybeTensor(blocked.logical_not()) : std::nullopt;
    mixed = at::scaled_dot_product_attention(q, k, v, counted);
  }
  return {at::linear(mixed.transpose(1, 2).flatten(2), out_weight, out_bias), shares};
}

at::Tensor EncoderLayer(const at::Tensor& source, int64_t width, int64_t heads, const at::Tensor& weight,
                        const at::Tensor& bias, const at::Tensor& out_weight, const at::Tensor& out_bias, bool use_gelu,
                        bool norm_first, double epsilon, const at::Tensor& norm_weight_1, const at::Tensor& norm_bias_1,
                        const at::Tensor& norm_weight_2, const at::Tensor& norm_bias_2, const at::Tensor& weight_1,
                        const at::Tensor& bias_1, const at::Tensor& weight_2, const at::Tensor& bias_2,
                        const MaybeTensor& mask, std::optional<int64_t> mask_type) {
  const auto first_norm = [&](const at::Tensor& x) {
    return at::layer_norm(x, {width}, norm_weight_1, norm_bias_1, epsilon);
  };
  const auto second_norm = [&](const at::Tensor& x) {
    return at::layer_norm(x, {width}, norm_weight_2, norm_bias_2, epsilon);
  };
  const auto attend = [&](const at::Tensor& x) {
    return std::get<0>(MultiHeadAttention(x, x, x, width, heads, weight, bias, out_weight, out_bias, mask,
                                          /*need_weights=*/false, /*average=*/false, mask_type));
  };
  const auto feed = [&](const at::Tensor& x) {
    const at::Tensor inside = at::linear(x, weight_1, bias_1);
    return at::linear(use_gelu ? at::gelu(inside) : inside.relu(), weight_2, bias_2);
  };
  if (norm_first) {
    const at::Tensor x = source + attend(first_norm(source));
    return x + feed(second_norm(x));
  }
  const at::Tensor x = first_norm(source + attend(source));
  return second_norm(x + feed(x));
}

// npu has no nested tensors: torch.nn pads if this returns false.
bool MakesNestedTensor(const at::Tensor&, const at::Tensor&) { return false; }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_native_multi_head_attention", &MultiHeadAttention);
  m.impl("_transformer_encoder_layer_fwd", &EncoderLayer);
  m.impl("_nested_tensor_from_mask_left_aligned", &MakesNestedTensor);
}

}  // namespace
}  // namespace npu::aten

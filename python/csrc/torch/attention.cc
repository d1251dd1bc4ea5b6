// scaled_dot_product_attention through the attention engine, where no gradient is asked for.
#include <ATen/ExpandUtils.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

constexpr int64_t kMaxHeadSize = 512;
constexpr int64_t kPatternMask = 2048;

// What the engine takes; everything else is composed of other operators.
bool EngineTakes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const std::optional<at::Tensor>& mask, double dropout, bool causal) {
  const auto symbolic = [](const at::Tensor& t) { return t.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); };
  if (symbolic(query) || symbolic(key) || symbolic(value)) return false;  // sizes that a compiler leaves open
  const auto wants_gradient = [](const at::Tensor& t) { return t.requires_grad(); };
  if (c10::GradMode::is_enabled() &&
      (wants_gradient(query) || wants_gradient(key) || wants_gradient(value) || (mask && wants_gradient(*mask))))
    return false;
  const at::ScalarType dtype = query.scalar_type();
  const bool known = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  if (!known || key.scalar_type() != dtype || value.scalar_type() != dtype || dropout != 0) return false;
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4 || query.numel() == 0 || key.numel() == 0) return false;
  if (key.size(0) != query.size(0) || value.size(0) != query.size(0) || key.size(1) != value.size(1) ||
      query.size(1) % key.size(1) != 0)
    return false;
  if (query.size(3) > kMaxHeadSize || value.size(3) > kMaxHeadSize) return false;
  // The engine gives a single query every key.
  return !causal || (!mask && query.size(2) > 1);
}

int64_t Choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double>, bool) {
  return static_cast<int64_t>(EngineTakes(query, key, value, mask, dropout, causal) ? at::SDPBackend::overrideable
                                                                                    : at::SDPBackend::math);
}

// Strides of a result of `sizes` as torch's meta function for this operator says them: the query's order of dimensions.
std::vector<int64_t> StridesLike(const at::Tensor& query, at::IntArrayRef sizes) {
  if (query.sizes() == sizes && query.is_non_overlapping_and_dense()) return query.strides().vec();
  if (query.sizes() == sizes) return at::infer_dense_strides(query.sizes(), query.strides());
  std::array<int64_t, 4> order{0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return query.stride(a) > query.stride(b); });
  std::vector<int64_t> strides(4);
  int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[*dim] = stride;
    stride *= sizes[*dim];
  }
  return strides;
}

// What a model does next, transpose(1, 2).contiguous(), is compiled to nothing where the strides say so: they must
// be what they say. The copy is the one that would have come there.
at::Tensor InLayoutOf(const at::Tensor& query, const at::Tensor& result) {
  const std::vector<int64_t> strides = StridesLike(query, result.sizes());
  bool same = true;
  for (int64_t dim = 0; dim < 4; ++dim) same &= result.size(dim) == 1 || result.stride(dim) == strides[dim];
  if (same) return result.as_strided(result.sizes(), strides);
  return at::empty_strided(result.sizes(), strides, result.options()).copy_(result);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
          const std::optional<at::Tensor>& bias, double, bool causal, bool, std::optional<double> scale) {
  const int64_t batch = query.size(0), heads = query.size(1), rows = query.size(2), keys = key.size(2);
  KernelCall call("NPUFusedInferAttentionScore", 1, "npu");
  call.In(Dense(query)).In(Dense(key)).In(Dense(value));
  if (bias && bias->defined()) call.In(Dense(bias->expand({batch, heads, rows, keys}), query.scalar_type()));
  call.Set("input_layout", std::string("BNSD"))
      .Set("num_heads", heads)
      .Set("num_key_value_heads", key.size(1))
      .Set("scale", scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3)))));
  if (causal) {
    // Sparse mode 2, the triangle from the top left, is asked for by a mask that stands for it and is never read.
    call.Absent().In(Empty({kPatternMask, kPatternMask}, at::kBool, query)).Set("sparse_mode", int64_t{2});
  }
  std::vector<at::Tensor> results = call.Run(2);
  const at::Tensor none = Empty({0}, at::kLong, query);
  return {InLayoutOf(query, results[0]), results[1], none, none, rows, keys, none, none, none};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_scaled_dot_product_fused_attention_overrideable", &Attention); }

}  // namespace
}  // namespace npu::aten

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &npu::aten::Choose)
}  // namespace at::native

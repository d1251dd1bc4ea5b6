// scaled_dot_product_attention through the attention engine, where no gradient is asked for.
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <tuple>

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
  return {results[0], results[1], none, none, rows, keys, none, none, none};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_scaled_dot_product_fused_attention_overrideable", &Attention); }

}  // namespace
}  // namespace npu::aten

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &npu::aten::Choose)
}  // namespace at::native

// scaled_dot_product_attention and its gradient through the attention engine.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "python/csrc/torch/generator.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

constexpr int64_t kMaxHeadSize = 768;

using MaybeScale = std::optional<double>;

// Whether vmap or forward-mode derivatives apply to the tensor, for which torch has no rule here. Under torch.func both
// may be hidden inside its wrappers.
bool Transformed(const at::Tensor& t) {
  constexpr c10::DispatchKeySet kWrappers{c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper};
  return t._fw_grad(/*level=*/0).defined() || t.key_set().has_any(kWrappers);
}

// Whether the engine supports the call; every other call is composed of other operators.
bool EngineTakes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask,
                 bool causal, bool groups) {
  const auto symbolic = [](const at::Tensor& t) { return t.unsafeGetTensorImpl()->has_symbolic_sizes_strides(); };
  if (symbolic(query) || symbolic(key) || symbolic(value)) return false;  // sizes that a compiler leaves unknown
  if (Transformed(query) || Transformed(key) || Transformed(value)) return false;
  const at::ScalarType dtype = query.scalar_type();
  const bool known = dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
  if (!known || key.scalar_type() != dtype || value.scalar_type() != dtype) return false;
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return false;
  const int64_t batch = query.size(0), heads = query.size(1), key_heads = key.size(1);
  if (key.size(0) != batch || value.size(0) != batch || value.size(1) != key_heads || key_heads == 0) return false;
  if (heads != key_heads && key_heads != 1 && !(groups && heads % key_heads == 0)) return false;
  if (key.size(2) != value.size(2) || key.size(3) != query.size(3)) return false;
  for (const int64_t size : {query.size(3), value.size(3)})
    if (size < 1 || size > kMaxHeadSize) return false;
  if (!Has(mask)) return true;
  // A gradient of the mask would be as large as the scores.
  const bool wants_gradient = c10::GradMode::is_enabled() && mask->requires_grad();
  return !causal && !wants_gradient && !Transformed(*mask) &&
         at::is_expandable_to(mask->sizes(), {batch, heads, query.size(2), key.size(2)});
}

int64_t Choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& mask, double,
               bool causal, MaybeScale, bool groups) {
  const at::Context& context = at::globalContext();
  // Scripts select flash attention by the names of other devices' backends.
  const bool fused = context.userEnabledOverrideableSDP() || context.userEnabledFlashSDP() ||
                     context.userEnabledMemEfficientSDP() || context.userEnabledCuDNNSDP();
  if (fused && EngineTakes(query, key, value, mask, causal, groups))
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  return static_cast<int64_t>(context.userEnabledMathSDP() ? at::SDPBackend::math : at::SDPBackend::error);
}

// Strides of an output of `sizes` as torch's meta function for this operator computes them: the query's order of
// dimensions.
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

// A compiler removes the transpose(1, 2).contiguous() that models call next if the promised strides make it a no-op, so
// the actual strides must match. The copy here takes the place of that one.
at::Tensor InLayoutOf(const at::Tensor& query, const at::Tensor& result) {
  const std::vector<int64_t> strides = StridesLike(query, result.sizes());
  bool same = true;
  for (int64_t dim = 0; dim < 4; ++dim) same &= result.size(dim) == 1 || result.stride(dim) == strides[dim];
  if (same) return result.as_strided(result.sizes(), strides);
  return at::empty_strided(result.sizes(), strides, result.options()).copy_(result);
}

// [1 or B, 1 or N, 1 or Sq, Skv]: broadcast dimensions are not expanded, except the keys.
at::Tensor DenseBias(const at::Tensor& bias, int64_t keys) {
  at::Tensor whole = bias;
  while (whole.dim() < 4) whole = whole.unsqueeze(0);
  return Dense(whole.size(3) == keys ? whole : whole.expand({-1, -1, -1, keys}));
}

// The arguments common to both passes; `seed` is that of the dropout.
KernelCall Call(const char* type, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const MaybeTensor& bias, double dropout, bool causal, MaybeScale scale, const at::Tensor& seed) {
  KernelCall call(type, "npu.aten");
  call.In(Dense(query)).In(Dense(key)).In(Dense(value));
  if (Has(bias)) {
    call.In(DenseBias(*bias, key.size(2)));
  } else {
    call.Absent();
  }
  call.HostScalar(seed.item<int64_t>())
      .Set("causal", int64_t{causal})
      .Set("scale", scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(3)))))
      .Set("keep_prob", 1.0 - dropout);
  return call;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>
Attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const MaybeTensor& bias,
          double dropout, bool causal, bool, MaybeScale scale) {
  // The seed stays on the host, which passes it to the backward pass; in a capture, it names the seed that replays
  // draw.
  const uint64_t drawn = dropout > 0 ? DrawSeed(SourceOf({}, query.device().index()), StreamOf(query)) : 0;
  const at::Tensor seed = at::scalar_tensor(static_cast<int64_t>(drawn), at::kLong);
  std::vector<at::Tensor> results =
      Call("ScaledDotProductAttention", query, key, value, bias, dropout, causal, scale, seed).Run(2);
  return {InLayoutOf(query, results[0]), results[1], {}, {}, query.size(2), key.size(2), seed,
          at::empty({}, at::kLong),      {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> AttentionBackward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> wanted, const at::Tensor& output, const at::Tensor& logsumexp,
    const at::Tensor&, const at::Tensor&, int64_t, int64_t, double dropout, bool causal, const at::Tensor& seed,
    const at::Tensor&, MaybeScale scale) {
  TORCH_CHECK(!wanted[3], "scaled_dot_product_attention expected a bias that wants no gradient; use the math backend, ",
              "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)");
  KernelCall call = Call("ScaledDotProductAttentionGrad", query, key, value, bias, dropout, causal, scale, seed);
  call.In(Dense(output)).In(Dense(logsumexp)).In(Dense(gradient));
  const std::vector<at::Tensor> results = call.Run(3);
  const auto result = [&](size_t i, const at::Tensor& of) {
    return wanted[i] ? InLayoutOf(of, results[i]) : at::Tensor();
  };
  return {result(0, query), result(1, key), result(2, value), at::Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_fused_sdp_choice", &Choose);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &Attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &AttentionBackward);
}

}  // namespace
}  // namespace npu::aten

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &npu::aten::Choose)
}  // namespace at::native

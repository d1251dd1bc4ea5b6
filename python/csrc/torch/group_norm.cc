// Group normalisation, and its gradients composed of torch's own operators.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

void CheckGroups(const at::Tensor& input, const MaybeTensor& per_channel, int64_t n, int64_t channels,
                 int64_t positions, int64_t groups) {
  TORCH_CHECK(IsRealFloat(input.scalar_type()), "native_group_norm expected real floats, got ", input.scalar_type());
  TORCH_CHECK(groups > 0 && channels % groups == 0, "Expected number of channels in input to be divisible by ",
              "num_groups, but got input of shape ", input.sizes(), " and num_groups=", groups);
  TORCH_CHECK(n >= 0 && channels >= 0 && positions >= 0 && input.numel() == n * channels * positions,
              "native_group_norm expected ", n, " x ", channels, " x ", positions, " elements, got ", input.sizes());
  TORCH_CHECK(!Has(per_channel) || per_channel->numel() == channels,
              "Expected weight and bias to be vectors of size equal to the number of channels in input, but got ",
              per_channel->sizes(), " and input of shape ", input.sizes());
}

Three GroupNorm(const at::Tensor& input, const MaybeTensor& weight, const MaybeTensor& bias, int64_t n,
                int64_t channels, int64_t positions, int64_t groups, double epsilon) {
  CheckGroups(input, weight, n, channels, positions, groups);
  CheckGroups(input, bias, n, channels, positions, groups);
  KernelCall call("GroupNormalization", "npu.aten");
  call.In(Dense(input), {n, channels, positions});
  for (const MaybeTensor& t : {weight, bias})
    Has(t) ? call.In(Dense(*t, AccumulateType(input.scalar_type())), {channels}) : call.Absent();
  const std::vector<at::Tensor> results = call.Set("num_groups", groups).Set("epsilon", epsilon).Run(3);
  return {results[0].view(input.sizes()), results[1], results[2]};
}

Three GroupNormBackward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& rstd,
                        const MaybeTensor& weight, int64_t n, int64_t channels, int64_t positions, int64_t groups,
                        std::array<bool, 3> wanted) {
  const std::vector<int64_t> split{n, groups, channels / groups, positions};
  const auto per_group = [&](const at::Tensor& t) { return Wide(t).reshape({n, groups, 1, 1}); };
  const at::Tensor g = Wide(grad).reshape(split);
  const at::Tensor x = (Wide(input).reshape(split) - per_group(mean)) * per_group(rstd);
  const bool scaled = Has(weight);
  const at::ScalarType type = scaled ? weight->scalar_type() : input.scalar_type();
  const auto per_channel = [&](const at::Tensor& t) { return t.sum({0, 3}).reshape({channels}).to(type); };
  at::Tensor grad_input, grad_weight, grad_bias;
  if (wanted[0]) {
    const at::Tensor h = scaled ? g * Wide(*weight).reshape({1, groups, channels / groups, 1}) : g;
    const at::Tensor centred = h - h.mean({2, 3}, true) - x * (h * x).mean({2, 3}, true);
    grad_input = (per_group(rstd) * centred).to(input.scalar_type()).reshape(input.sizes());
  }
  if (wanted[1]) grad_weight = per_channel(g * x);
  if (wanted[2]) grad_bias = per_channel(g);
  return {grad_input, grad_weight, grad_bias};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("native_group_norm", &GroupNorm);
  m.impl("native_group_norm_backward", &GroupNormBackward);
}

}  // namespace
}  // namespace npu::aten

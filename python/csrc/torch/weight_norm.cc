// Weights as a length and a direction (torch.nn.utils.weight_norm).
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_weight_norm_differentiable_backward.h>
#include <ATen/ops/norm_except_dim.h>
#include <torch/library.h>

#include <tuple>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;

Two WeightNorm(const at::Tensor& v, const at::Tensor& g, int64_t dim) {
  const at::Tensor norms = at::norm_except_dim(Wide(v), 2, dim);
  return {(Wide(v) * (Wide(g) / norms)).to(v.scalar_type()), norms};
}

Two WeightNormBackward(const at::Tensor& grad, const at::Tensor& v, const at::Tensor& g, const at::Tensor& norms,
                       int64_t dim) {
  const auto [grad_v, grad_g] = at::_weight_norm_differentiable_backward(Wide(grad), Wide(v), Wide(g), norms, dim);
  return {grad_v.to(v.scalar_type()), grad_g.to(g.scalar_type())};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("_weight_norm_interface", &WeightNorm);
  m.impl("_weight_norm_interface_backward", &WeightNormBackward);
}

}  // namespace
}  // namespace npu::aten

// Gradients that are operators of their own in torch, composed of the device's kernels. 16-bit tensors are computed in
// float and rounded once.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_log_softmax_backward_data_meta.h>
#include <ATen/ops/_softmax_backward_data_meta.h>
#include <ATen/ops/gelu_backward_meta.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/sigmoid_backward_meta.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/silu_backward_meta.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/tanh_backward_meta.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/threshold_backward_meta.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <vector>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::Tensor& ThresholdBackward(const at::Tensor& grad, const at::Tensor& self, const c10::Scalar& threshold,
                              at::Tensor& out) {
  InferElementwise<at::meta::structured_threshold_backward>(out, grad, self, threshold);
  return out.copy_(grad.masked_fill(self.le(threshold), 0));
}

at::Tensor& SigmoidBackward(const at::Tensor& grad, const at::Tensor& output, at::Tensor& out) {
  return Elementwise<at::meta::structured_sigmoid_backward, at::_ops::sigmoid_backward_grad_input>(
      Aten("SigmoidGrad"), {grad, output}, out, grad, output);
}

at::Tensor& TanhBackward(const at::Tensor& grad, const at::Tensor& output, at::Tensor& out) {
  return Elementwise<at::meta::structured_tanh_backward, at::_ops::tanh_backward_grad_input>(
      Aten("TanhGrad"), {grad, output}, out, grad, output);
}

at::Tensor& SiluBackward(const at::Tensor& grad, const at::Tensor& self, at::Tensor& out) {
  return Elementwise<at::meta::structured_silu_backward, at::_ops::silu_backward_grad_input>(
      Aten("SiluGrad"), {grad, self}, out, grad, self);
}

at::Tensor& GeluBackward(const at::Tensor& grad, const at::Tensor& self, c10::string_view approximate,
                         at::Tensor& out) {
  return Elementwise<at::meta::structured_gelu_backward, at::_ops::gelu_backward_grad_input>(
      Aten(approximate == "tanh" ? "GeluTanhGrad" : "GeluGrad"), {grad, self}, out, grad, self, approximate);
}

at::Tensor& SoftmaxGradient(const char* type, const at::Tensor& grad, const at::Tensor& result, int64_t dim,
                            at::Tensor& out) {
  if (out.numel() == 0) return out;
  const at::Tensor g = Dense(AtLeastOneDimension(grad));
  const at::Tensor y = Dense(AtLeastOneDimension(result), g.scalar_type());
  KernelCall(type, "npu.aten").In(g).In(y).Set("axis", at::maybe_wrap_dim(dim, g.dim())).Into(out);
  return out;
}

at::Tensor& SoftmaxBackward(const at::Tensor& grad, const at::Tensor& output, int64_t dim, at::ScalarType dtype,
                            at::Tensor& out) {
  Infer<at::meta::structured__softmax_backward_data>(out, grad, output, dim, dtype);
  return SoftmaxGradient("SoftmaxGrad", grad, output, dim, out);
}

at::Tensor& LogSoftmaxBackward(const at::Tensor& grad, const at::Tensor& output, int64_t dim, at::ScalarType dtype,
                               at::Tensor& out) {
  Infer<at::meta::structured__log_softmax_backward_data>(out, grad, output, dim, dtype);
  return SoftmaxGradient("LogSoftmaxGrad", grad, output, dim, out);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> LayerNormBackward(const at::Tensor& grad, const at::Tensor& input,
                                                                 at::IntArrayRef normalized, const at::Tensor& mean,
                                                                 const at::Tensor& rstd,
                                                                 const std::optional<at::Tensor>& weight,
                                                                 const std::optional<at::Tensor>& bias,
                                                                 std::array<bool, 3> wanted) {
  const at::ScalarType type = input.scalar_type(), wide = AccumulateType(type);
  const at::Tensor grad_input = Empty(input.sizes(), type, input);
  const at::Tensor of_weight = Empty(normalized, wide, input), of_bias = Empty(normalized, wide, input);
  KernelCall call("LayerNormGrad", "npu.aten");
  call.In(Dense(grad, type)).In(Dense(input)).In(Dense(mean, wide)).In(Dense(rstd, wide));
  Has(weight) ? call.In(Dense(*weight, wide)) : call.Absent();
  call.Set("axes", static_cast<int64_t>(normalized.size()));
  call.Into({grad_input, of_weight.view({-1}), of_bias.view({-1})});
  const auto given = [&](bool is_wanted, const at::Tensor& sums, const std::optional<at::Tensor>& like) {
    return is_wanted && Has(like) ? sums.to(like->scalar_type()) : at::Tensor();
  };
  return {wanted[0] ? grad_input : at::Tensor(), given(wanted[1], of_weight, weight), given(wanted[2], of_bias, bias)};
}

at::Tensor EmbeddingBackward(const at::Tensor& grad, const at::Tensor& indices, int64_t rows, int64_t padding,
                             bool scale_by_frequency) {
  const int64_t width = grad.size(-1);
  const at::Tensor positions = indices.reshape({-1});
  at::Tensor g = Wide(grad).reshape({-1, width});
  if (scale_by_frequency) {
    const at::Tensor ones = Empty({positions.numel()}, g.scalar_type(), grad).fill_(1);
    const at::Tensor counts = Empty({rows}, g.scalar_type(), grad).zero_().index_add_(0, positions, ones);
    g = g / counts.index_select(0, positions).unsqueeze(1);
  }
  if (padding >= 0) g = g.masked_fill(positions.unsqueeze(1).eq(padding), 0);
  at::Tensor sums = Empty({rows, width}, g.scalar_type(), grad).zero_();
  return sums.index_add_(0, positions, g).to(grad.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("threshold_backward.grad_input", &ThresholdBackward);
  m.impl("sigmoid_backward.grad_input", &SigmoidBackward);
  m.impl("tanh_backward.grad_input", &TanhBackward);
  m.impl("silu_backward.grad_input", &SiluBackward);
  m.impl("gelu_backward.grad_input", &GeluBackward);
  m.impl("_softmax_backward_data.out", &SoftmaxBackward);
  m.impl("_log_softmax_backward_data.out", &LogSoftmaxBackward);
  m.impl("native_layer_norm_backward", &LayerNormBackward);
  m.impl("embedding_dense_backward", &EmbeddingBackward);
}

}  // namespace
}  // namespace npu::aten

// Elementwise losses and their gradients.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/function.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"

namespace npu::aten {
namespace {

// A new output for an operator of `self` and `target`; 16-bit floats are computed in float, to be rounded once.
at::Tensor Room(const char* op, const Function& function, const at::Tensor& self, const at::Tensor& target) {
  const at::ScalarType dtype = at::result_type(self, target);
  TORCH_CHECK(function.Takes(dtype), op, " expected real floats, got ", dtype);
  at::Tensor room = Empty({0}, AccumulateType(dtype), self);
  InferBroadcast(room, {self, target});
  return room;
}

// The mean or the sum of function(inputs), or all its elements. The first inputs are self and target.
at::Tensor Loss(const char* op, const Function& function, std::initializer_list<at::Tensor> inputs, int64_t reduction,
                const MaybeTensor& weight = {}) {
  const at::Tensor &self = inputs.begin()[0], &target = inputs.begin()[1];
  at::Tensor losses = Room(op, function, self, target);
  FunctionInto(function, losses.scalar_type(), inputs, losses);
  if (Has(weight)) losses.mul_(*weight);
  if (reduction == at::Reduction::Mean) losses = losses.mean();
  if (reduction == at::Reduction::Sum) losses = losses.sum();
  return losses.to(at::result_type(self, target));
}

// function(grad, self, target), the gradient of a loss; divided by the number of elements if the loss is a mean.
at::Tensor Gradient(const char* op, Function function, const at::Tensor& grad, const at::Tensor& self,
                    const at::Tensor& target, int64_t reduction, const MaybeTensor& weight = {}) {
  at::Tensor gradient = Room(op, function, self, target);
  const double scale = reduction == at::Reduction::Mean ? 1 / static_cast<double>(gradient.numel()) : 1;
  function.numbers.emplace_back("scale", scale);
  FunctionInto(function, gradient.scalar_type(), {grad, self, target}, gradient);
  if (Has(weight)) gradient.mul_(*weight);
  return gradient.to(at::result_type(self, target));
}

at::Tensor& Into(at::Tensor& out, const at::Tensor& result) {
  if (at::native::resize_output(out, result.sizes()))
    out.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
  return out.copy_(result);
}

at::Tensor& MseLoss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, at::Tensor& out) {
  return Into(out, Loss("mse_loss", Aten("MseLoss"), {self, target}, reduction));
}
at::Tensor MseLossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                           int64_t reduction) {
  return Gradient("mse_loss_backward", Aten("MseLossGrad"), grad, self, target, reduction);
}
at::Tensor& MseLossBackwardOut(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                               int64_t reduction, at::Tensor& out) {
  return Into(out, MseLossBackward(grad, self, target, reduction));
}

at::Tensor& SmoothL1Loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double beta,
                         at::Tensor& out) {
  return Into(out, Loss("smooth_l1_loss", Aten("SmoothL1Loss", {{"beta", beta}}), {self, target}, reduction));
}
at::Tensor& SmoothL1LossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                 int64_t reduction, double beta, at::Tensor& out) {
  return Into(out, Gradient("smooth_l1_loss_backward", Aten("SmoothL1LossGrad", {{"beta", beta}}), grad, self, target,
                            reduction));
}

at::Tensor HuberLoss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
  return Loss("huber_loss", Aten("HuberLoss", {{"delta", delta}}), {self, target}, reduction);
}
at::Tensor& HuberLossOut(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double delta,
                         at::Tensor& out) {
  return Into(out, HuberLoss(self, target, reduction, delta));
}
at::Tensor& HuberLossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                              int64_t reduction, double delta, at::Tensor& out) {
  return Into(
      out, Gradient("huber_loss_backward", Aten("HuberLossGrad", {{"delta", delta}}), grad, self, target, reduction));
}

at::Tensor BinaryCrossEntropy(const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight,
                              int64_t reduction) {
  return Loss("binary_cross_entropy", Aten("BinaryCrossEntropy"), {self, target}, reduction, weight);
}
at::Tensor& BinaryCrossEntropyOut(const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight,
                                  int64_t reduction, at::Tensor& out) {
  return Into(out, BinaryCrossEntropy(self, target, weight, reduction));
}
at::Tensor BinaryCrossEntropyBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                      const MaybeTensor& weight, int64_t reduction) {
  return Gradient("binary_cross_entropy_backward", Aten("BinaryCrossEntropyGrad"), grad, self, target, reduction,
                  weight);
}
at::Tensor& BinaryCrossEntropyBackwardOut(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                          const MaybeTensor& weight, int64_t reduction, at::Tensor& out) {
  return Into(out, BinaryCrossEntropyBackward(grad, self, target, weight, reduction));
}

// One kernel: torch's composition rounds in each of its operators.
at::Tensor BinaryCrossEntropyWithLogits(const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight,
                                        const MaybeTensor& pos_weight, int64_t reduction) {
  constexpr const char* kOp = "binary_cross_entropy_with_logits";
  if (!Has(pos_weight)) return Loss(kOp, Aten("BinaryCrossEntropyWithLogits"), {self, target}, reduction, weight);
  return Loss(kOp, Aten("BinaryCrossEntropyWithLogitsWeighted"), {self, target, *pos_weight}, reduction, weight);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("mse_loss.out", &MseLoss);
  m.impl("mse_loss_backward", &MseLossBackward);
  m.impl("mse_loss_backward.grad_input", &MseLossBackwardOut);
  m.impl("smooth_l1_loss.out", &SmoothL1Loss);
  m.impl("smooth_l1_loss_backward.grad_input", &SmoothL1LossBackward);
  m.impl("huber_loss", &HuberLoss);
  m.impl("huber_loss.out", &HuberLossOut);
  m.impl("huber_loss_backward.out", &HuberLossBackward);
  m.impl("binary_cross_entropy", &BinaryCrossEntropy);
  m.impl("binary_cross_entropy_with_logits", &BinaryCrossEntropyWithLogits);
  m.impl("binary_cross_entropy.out", &BinaryCrossEntropyOut);
  m.impl("binary_cross_entropy_backward", &BinaryCrossEntropyBackward);
  m.impl("binary_cross_entropy_backward.grad_input", &BinaryCrossEntropyBackwardOut);
}

}  // namespace
}  // namespace npu::aten

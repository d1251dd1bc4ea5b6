// The losses of classification and of regression and their gradients, composed of the device's kernels.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mse_loss_meta.h>
#include <ATen/ops/nll_loss_backward_meta.h>
#include <ATen/ops/nll_loss_forward_meta.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <tuple>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/integer_indices.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::OptionalTensorRef Reference(const std::optional<at::Tensor>& t) {
  return t && t->defined() ? at::OptionalTensorRef(*t) : at::OptionalTensorRef();
}

// One class per row. Rows to be ignored get class 0 and the weight 0.
struct Targets {
  at::Tensor ignored;  // [rows]
  at::Tensor classes;  // [rows, 1]
  at::Tensor weights;  // [rows]

  Targets(const at::Tensor& like, const at::Tensor& target, const std::optional<at::Tensor>& weight,
          int64_t ignore_index) {
    const at::Tensor rows = target.reshape({-1});
    ignored = rows.eq(ignore_index);
    const at::Tensor known = rows.masked_fill(ignored, 0);
    classes = known.unsqueeze(1).to(at::kLong);
    weights = weight && weight->defined() ? weight->index_select(0, known) : like.new_ones({rows.numel()});
    weights = weights.masked_fill(ignored, 0);
  }
};

std::tuple<at::Tensor&, at::Tensor&> NllLoss(const at::Tensor& self, const at::Tensor& given_target,
                                             const std::optional<at::Tensor>& weight, int64_t reduction,
                                             int64_t ignore_index, at::Tensor& out, at::Tensor& total_weight) {
  const at::Tensor target = Int64Indices(given_target);
  InferTwo<at::meta::structured_nll_loss_forward>(out, total_weight, self, target, Reference(weight), reduction,
                                                  ignore_index);
  const at::Tensor scores = self.dim() == 1 ? self.unsqueeze(0) : self;
  const Targets targets(self, target, weight, ignore_index);
  // What is ignored may be infinite: it is replaced, not multiplied by 0.
  const at::Tensor losses =
      (-scores.gather(1, targets.classes).squeeze(1) * targets.weights).masked_fill(targets.ignored, 0);
  const at::Tensor sum_of_weights = targets.weights.sum();
  total_weight.copy_(sum_of_weights);
  if (reduction == at::Reduction::None) {
    out.copy_(losses.view(out.sizes()));
  } else {
    out.copy_(reduction == at::Reduction::Mean ? losses.sum() / sum_of_weights : losses.sum());
  }
  return {out, total_weight};
}

at::Tensor& NllLossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& given_target,
                            const std::optional<at::Tensor>& weight, int64_t reduction, int64_t ignore_index,
                            const at::Tensor& total_weight, at::Tensor& out) {
  const at::Tensor target = Int64Indices(given_target);
  Infer<at::meta::structured_nll_loss_backward>(out, grad, self, target, Reference(weight), reduction, ignore_index,
                                                total_weight);
  const Targets targets(self, target, weight, ignore_index);
  at::Tensor slopes = -targets.weights * (reduction == at::Reduction::None ? grad.reshape({-1}) : grad);
  if (reduction == at::Reduction::Mean) slopes = slopes / total_weight;
  out.zero_();
  const at::Tensor rows = self.dim() == 1 ? out.unsqueeze(0) : out;
  rows.scatter_(1, targets.classes, slopes.masked_fill(targets.ignored, 0).unsqueeze(1).to(out.scalar_type()));
  return out;
}

// torch's own functional forms would refuse int32 targets before they came here.
std::tuple<at::Tensor, at::Tensor> NewNllLoss(const at::Tensor& self, const at::Tensor& target,
                                              const std::optional<at::Tensor>& weight, int64_t reduction,
                                              int64_t ignore_index) {
  at::Tensor out = at::empty({0}, self.options()), total_weight = at::empty({0}, self.options());
  NllLoss(self, target, weight, reduction, ignore_index, out, total_weight);
  return {out, total_weight};
}
at::Tensor NewNllLossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                              const std::optional<at::Tensor>& weight, int64_t reduction, int64_t ignore_index,
                              const at::Tensor& total_weight) {
  at::Tensor out = at::empty({0}, self.options());
  return NllLossBackward(grad, self, target, weight, reduction, ignore_index, total_weight, out);
}

at::Tensor& MseLossOut(const at::Tensor& self, const at::Tensor& target, int64_t reduction, at::Tensor& out) {
  OutputMeta<at::meta::structured_mse_loss>(out).meta(self, target, reduction);
  const at::ScalarType dtype = AccumulateType(at::result_type(self, target));
  const at::Tensor difference = self.to(dtype).sub(target.to(dtype));
  const at::Tensor squares = difference.mul(difference);
  if (reduction == at::Reduction::None) return out.resize_(squares.sizes()).copy_(squares);
  return out.resize_({}).copy_(reduction == at::Reduction::Mean ? squares.mean() : squares.sum());
}
at::Tensor MseLossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                           int64_t reduction) {
  const at::ScalarType dtype = at::result_type(self, target);
  const at::ScalarType compute = AccumulateType(dtype);
  const double scale = reduction == at::Reduction::Mean ? 2.0 / static_cast<double>(self.numel()) : 2.0;
  return self.to(compute).sub(target.to(compute)).mul_(scale).mul(grad.to(compute)).to(dtype);
}
at::Tensor& MseLossBackwardOut(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                               int64_t reduction, at::Tensor& out) {
  const at::Tensor gradient = MseLossBackward(grad, self, target, reduction);
  at::native::resize_output(out, gradient.sizes());
  return out.copy_(gradient);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nll_loss_forward", &NewNllLoss);
  m.impl("nll_loss_backward", &NewNllLossBackward);
  m.impl("nll_loss_forward.output", &NllLoss);
  m.impl("nll_loss_backward.grad_input", &NllLossBackward);
  m.impl("mse_loss.out", &MseLossOut);
  m.impl("mse_loss_backward", &MseLossBackward);
  m.impl("mse_loss_backward.grad_input", &MseLossBackwardOut);
}

}  // namespace
}  // namespace npu::aten

// Negative log likelihood and its gradient, composed of the device's kernels.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nll_loss_backward_meta.h>
#include <ATen/ops/nll_loss_forward_meta.h>
#include <torch/library.h>

#include <tuple>

#include "python/csrc/torch/integer_indices.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

at::OptionalTensorRef Reference(const std::optional<at::Tensor>& t) {
  return Has(t) ? at::OptionalTensorRef(*t) : at::OptionalTensorRef();
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
    weights = Has(weight) ? weight->index_select(0, known) : like.new_ones({rows.numel()});
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
  // Ignored losses may be infinite, so they are replaced, not multiplied by 0.
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

// torch's own functional forms would reject int32 targets before this is called.
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

// --- One class per pixel: [N, classes, H, W] as rows of classes

at::Tensor Rows(const at::Tensor& scores) {
  TORCH_CHECK(scores.dim() == 4, "nll_loss2d expected scores of shape [N, classes, H, W], got ", scores.sizes());
  return scores.permute({0, 2, 3, 1}).reshape({-1, scores.size(1)});
}
void CheckPlaces(const at::Tensor& scores, const at::Tensor& target) {
  TORCH_CHECK(target.dim() == 3 && target.size(0) == scores.size(0) && target.size(1) == scores.size(2) &&
                  target.size(2) == scores.size(3),
              "nll_loss2d expected a target of shape [N, H, W] for scores of shape ", scores.sizes(), ", got ",
              target.sizes());
}

std::tuple<at::Tensor, at::Tensor> NllLoss2d(const at::Tensor& self, const at::Tensor& target,
                                             const std::optional<at::Tensor>& weight, int64_t reduction,
                                             int64_t ignore_index) {
  const at::Tensor rows = Rows(self);
  CheckPlaces(self, target);
  auto [loss, total_weight] = NewNllLoss(rows, target.reshape({-1}), weight, reduction, ignore_index);
  return {reduction == at::Reduction::None ? loss.view(target.sizes()) : loss, total_weight};
}
at::Tensor NllLoss2dBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                             const std::optional<at::Tensor>& weight, int64_t reduction, int64_t ignore_index,
                             const at::Tensor& total_weight) {
  const at::Tensor rows = Rows(self);
  CheckPlaces(self, target);
  const at::Tensor slopes = reduction == at::Reduction::None ? grad.reshape({-1}) : grad;
  const at::Tensor gradient =
      NewNllLossBackward(slopes, rows, target.reshape({-1}), weight, reduction, ignore_index, total_weight);
  return gradient.view({self.size(0), self.size(2), self.size(3), self.size(1)}).permute({0, 3, 1, 2}).contiguous();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("nll_loss_forward", &NewNllLoss);
  m.impl("nll_loss_backward", &NewNllLossBackward);
  m.impl("nll_loss_forward.output", &NllLoss);
  m.impl("nll_loss_backward.grad_input", &NllLossBackward);
  m.impl("nll_loss2d_forward", &NllLoss2d);
  m.impl("nll_loss2d_backward", &NllLoss2dBackward);
}

}  // namespace
}  // namespace npu::aten

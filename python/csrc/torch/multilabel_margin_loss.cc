// The multi-label margin loss. Classes may be int32, too, where torch's own operator accepts int64 only.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include <tuple>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/integer_indices.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

void CheckShapes(const at::Tensor& self, const at::Tensor& target) {
  TORCH_CHECK(self.is_floating_point(), "multilabel_margin_loss expected scores of floats, got ", self.scalar_type());
  TORCH_CHECK(self.dim() <= 2 && (self.dim() == 0 || self.size(-1) != 0),
              "Expected non-empty vector or matrix with optional 0-dim batch size, but got: ", self.sizes());
  TORCH_CHECK(target.sizes() == self.sizes() || (self.dim() == 0 && target.numel() == 1),
              "inconsistent target size: ", target.sizes(), " for input of size: ", self.sizes());
  TORCH_CHECK(target.scalar_type() == at::kLong, "expected scalar type Long but found ", target.scalar_type());
}

// Scores or classes as [rows, classes].
at::Tensor ScoreRows(const at::Tensor& t) { return Dense(t.dim() == 2 ? t : t.reshape({1, -1})); }

std::tuple<at::Tensor, at::Tensor> MultilabelMarginLoss(const at::Tensor& self, const at::Tensor& given_target,
                                                        int64_t reduction) {
  const at::Tensor target = Int64Indices(given_target);
  CheckShapes(self, target);
  const std::vector<at::Tensor> results =
      KernelCall("MultilabelMarginLoss", "npu.aten").In(ScoreRows(self)).In(ScoreRows(target)).Run(2);
  at::Tensor losses = results[0];
  if (reduction == at::Reduction::Mean) losses = losses.mean();
  if (reduction == at::Reduction::Sum) losses = losses.sum();
  if (reduction == at::Reduction::None && self.dim() < 2) losses = losses.squeeze(0);
  return {losses.to(self.scalar_type()), results[1].view(target.sizes())};
}
std::tuple<at::Tensor&, at::Tensor&> MultilabelMarginLossOut(const at::Tensor& self, const at::Tensor& target,
                                                             int64_t reduction, at::Tensor& out,
                                                             at::Tensor& is_target) {
  const auto [loss, marks] = MultilabelMarginLoss(self, target, reduction);
  at::native::resize_output(out, loss.sizes());
  at::native::resize_output(is_target, marks.sizes());
  out.copy_(loss);
  is_target.copy_(marks);
  return {out, is_target};
}

at::Tensor MultilabelMarginBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& given_target,
                                    int64_t reduction, const at::Tensor&) {
  const at::Tensor target = Int64Indices(given_target);
  CheckShapes(self, target);
  const at::Tensor scores = ScoreRows(self);
  const int64_t rows = scores.size(0);
  const at::Tensor each = (reduction == at::Reduction::Mean ? Wide(grad) / rows : Wide(grad)).reshape({-1});
  // Scores in the type of the gradient, which is divided before it is rounded.
  return KernelCall("MultilabelMarginGrad", "npu.aten")
      .In(Dense(each.expand({rows})))
      .In(Wide(scores))
      .In(ScoreRows(target))
      .One()
      .view(self.sizes())
      .to(self.scalar_type());
}
at::Tensor& MultilabelMarginBackwardOut(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                        int64_t reduction, const at::Tensor& is_target, at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  return out.copy_(MultilabelMarginBackward(grad, self, target, reduction, is_target));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("multilabel_margin_loss_forward", &MultilabelMarginLoss);
  m.impl("multilabel_margin_loss_forward.output", &MultilabelMarginLossOut);
  m.impl("multilabel_margin_loss_backward", &MultilabelMarginBackward);
  m.impl("multilabel_margin_loss_backward.grad_input", &MultilabelMarginBackwardOut);
}

}  // namespace
}  // namespace npu::aten

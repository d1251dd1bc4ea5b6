// The multi-class margin loss: how far scores reach above that of the right class, less a margin.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

struct Margins {
  at::Tensor classes;  // [rows, 1]
  at::Tensor excess;   // [rows, classes], at least 0; 0 for the right class
  at::Tensor weights;  // [rows, 1], or undefined
  bool squared;

  Margins(const at::Tensor& self, const at::Tensor& target, const c10::Scalar& p, const c10::Scalar& margin,
          const MaybeTensor& weight)
      : squared(p.equal(2)) {
    TORCH_CHECK(p.equal(1) || p.equal(2), "only p == 1 and p == 2 supported");
    TORCH_CHECK(self.is_floating_point() && self.dim() <= 2 && self.numel() > 0,
                "multi_margin_loss expected scores of up to two dimensions of floats, got ", self.scalar_type(),
                self.sizes());
    const at::Tensor scores = Wide(self.dim() == 2 ? self : self.reshape({1, -1}));
    const int64_t rows = scores.size(0), count = scores.size(1);
    TORCH_CHECK(target.scalar_type() == at::kLong && target.dim() <= 1 && target.numel() == rows,
                "inconsistent target size, expected int64 of ", rows, ", got ", target.scalar_type(), target.sizes());
    classes = target.reshape({rows, 1});
    if (Has(weight)) {
      TORCH_CHECK(weight->dim() <= 1 && weight->numel() == count, "inconsistent weight size, expected ", count,
                  " but got ", weight->sizes());
      weights = Wide(*weight).reshape({-1}).index_select(0, classes.squeeze(1)).unsqueeze(1);
    }
    const at::Tensor above = scores - scores.gather(1, classes) + margin;
    excess = above.clamp_min(0).scatter(1, classes, 0);
  }

  at::Tensor Weighted(const at::Tensor& t) const { return weights.defined() ? t * weights : t; }
};

at::Tensor MultiMarginLoss(const at::Tensor& self, const at::Tensor& target, const c10::Scalar& p,
                           const c10::Scalar& margin, const MaybeTensor& weight, int64_t reduction) {
  const Margins margins(self, target, p, margin, weight);
  const at::Tensor each = margins.squared ? margins.excess * margins.excess : margins.excess;
  at::Tensor losses = margins.Weighted(each).mean(1);
  if (reduction == at::Reduction::Mean) losses = losses.mean();
  if (reduction == at::Reduction::Sum) losses = losses.sum();
  if (reduction == at::Reduction::None) losses = losses.reshape(target.sizes());
  return losses.to(self.scalar_type());
}
at::Tensor& MultiMarginLossOut(const at::Tensor& self, const at::Tensor& target, const c10::Scalar& p,
                               const c10::Scalar& margin, const MaybeTensor& weight, int64_t reduction,
                               at::Tensor& out) {
  const at::Tensor loss = MultiMarginLoss(self, target, p, margin, weight, reduction);
  at::native::resize_output(out, loss.sizes());
  return out.copy_(loss);
}

at::Tensor MultiMarginLossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                   const c10::Scalar& p, const c10::Scalar& margin, const MaybeTensor& weight,
                                   int64_t reduction) {
  const Margins margins(self, target, p, margin, weight);
  const at::Tensor& excess = margins.excess;
  const at::Tensor slopes = margins.squared ? excess * 2 : excess.gt(0).to(excess.scalar_type());
  const int64_t terms = excess.size(1) * (reduction == at::Reduction::Mean ? excess.size(0) : 1);
  const at::Tensor upstream = reduction == at::Reduction::None ? Wide(grad).reshape({-1, 1}) : Wide(grad);
  const at::Tensor others = margins.Weighted(slopes) * upstream / terms;
  return others.scatter(1, margins.classes, -others.sum(1, /*keepdim=*/true)).view(self.sizes()).to(self.scalar_type());
}
at::Tensor& MultiMarginLossBackwardOut(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                       const c10::Scalar& p, const c10::Scalar& margin, const MaybeTensor& weight,
                                       int64_t reduction, at::Tensor& out) {
  at::native::resize_output(out, self.sizes());
  return out.copy_(MultiMarginLossBackward(grad, self, target, p, margin, weight, reduction));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("multi_margin_loss", &MultiMarginLoss);
  m.impl("multi_margin_loss.out", &MultiMarginLossOut);
  m.impl("multi_margin_loss_backward", &MultiMarginLossBackward);
  m.impl("multi_margin_loss_backward.grad_input", &MultiMarginLossBackwardOut);
}

}  // namespace
}  // namespace npu::aten

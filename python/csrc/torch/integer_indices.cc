// Operators that also accept int32 indices or classes on an NPU; torch's own accept int64 only.
#include "python/csrc/torch/integer_indices.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/multilabel_margin_loss_backward_ops.h>
#include <ATen/ops/multilabel_margin_loss_forward_ops.h>
#include <ATen/ops/one_hot_native.h>
#include <torch/library.h>

#include <tuple>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

at::Tensor OneHot(const at::Tensor& self, int64_t classes) { return at::native::one_hot(Int64Indices(self), classes); }

std::tuple<at::Tensor&, at::Tensor&> MultilabelMarginLossOut(const at::Tensor& self, const at::Tensor& target,
                                                             int64_t reduction, at::Tensor& out,
                                                             at::Tensor& is_target) {
  return FallBack<at::_ops::multilabel_margin_loss_forward_output>(self, Int64Indices(target), reduction, out,
                                                                   is_target);
}
std::tuple<at::Tensor, at::Tensor> MultilabelMarginLoss(const at::Tensor& self, const at::Tensor& target,
                                                        int64_t reduction) {
  return FallBack<at::_ops::multilabel_margin_loss_forward>(self, Int64Indices(target), reduction);
}
at::Tensor MultilabelMarginLossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                        int64_t reduction, const at::Tensor& is_target) {
  return FallBack<at::_ops::multilabel_margin_loss_backward>(grad, self, Int64Indices(target), reduction, is_target);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("one_hot", &OneHot);
  m.impl("multilabel_margin_loss_forward.output", &MultilabelMarginLossOut);
  m.impl("multilabel_margin_loss_forward", &MultilabelMarginLoss);
  m.impl("multilabel_margin_loss_backward", &MultilabelMarginLossBackward);
}

}  // namespace
}  // namespace npu::aten

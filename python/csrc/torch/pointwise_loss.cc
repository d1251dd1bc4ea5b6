// Losses that compare element with element, and their gradients.
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "ep/runtime/error.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/map.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

at::ScalarType CheckedType(const char* op, const at::Tensor& self, const at::Tensor& target) {
  const at::ScalarType dtype = at::result_type(self, target);
  TORCH_CHECK(IsRealFloat(dtype), op, " expected real floats, got ", dtype);
  return dtype;
}

// The mean or the sum of f(self, target, others...), or all of it: in float, rounded once.
template <class F, class... Others>
at::Tensor Loss(const char* op, const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight,
                int64_t reduction, F f, const Others&... others) {
  const at::ScalarType dtype = CheckedType(op, self, target);
  const at::ScalarType wide = AccumulateType(dtype);
  at::Tensor losses = Empty(at::infer_size(self.sizes(), target.sizes()), wide, self);
  MapInto(op, wide, losses, f, self, target, others...);
  if (Has(weight)) losses.mul_(*weight);
  if (reduction == at::Reduction::Mean) losses = losses.mean();
  if (reduction == at::Reduction::Sum) losses = losses.sum();
  return losses.to(dtype);
}

// `grad` times the slope of f, which f gives for (self, target).
template <class F>
at::Tensor Gradient(const char* op, const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                    const MaybeTensor& weight, int64_t reduction, F slope) {
  const at::ScalarType dtype = CheckedType(op, self, target);
  const at::ScalarType wide = AccumulateType(dtype);
  at::Tensor gradient = Empty(at::infer_size(self.sizes(), target.sizes()), wide, self);
  const double scale = reduction == at::Reduction::Mean ? 1 / static_cast<double>(gradient.numel()) : 1;
  MapInto(
      op, wide, gradient, [=](auto g, auto x, auto y) { return g * slope(x, y) * static_cast<decltype(g)>(scale); },
      grad, self, target);
  if (Has(weight)) gradient.mul_(*weight);
  return gradient.to(dtype);
}

at::Tensor& Into(at::Tensor& out, const at::Tensor& result) {
  at::native::resize_output(out, result.sizes());
  return out.copy_(result);
}

at::Tensor& MseLoss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, at::Tensor& out) {
  return Into(out, Loss("mse_loss", self, target, {}, reduction, [](auto x, auto y) { return (x - y) * (x - y); }));
}
at::Tensor MseLossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                           int64_t reduction) {
  return Gradient("mse_loss_backward", grad, self, target, {}, reduction, [](auto x, auto y) { return 2 * (x - y); });
}
at::Tensor& MseLossBackwardOut(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                               int64_t reduction, at::Tensor& out) {
  return Into(out, MseLossBackward(grad, self, target, reduction));
}

at::Tensor& SmoothL1Loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double beta,
                         at::Tensor& out) {
  return Into(out, Loss("smooth_l1_loss", self, target, {}, reduction, [beta](auto x, auto y) {
                const auto distance = std::fabs(x - y), b = static_cast<decltype(x)>(beta);
                return distance < b ? distance * distance / (2 * b) : distance - b / 2;
              }));
}
at::Tensor& SmoothL1LossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                 int64_t reduction, double beta, at::Tensor& out) {
  return Into(out, Gradient("smooth_l1_loss_backward", grad, self, target, {}, reduction, [beta](auto x, auto y) {
                const auto way = x - y, b = static_cast<decltype(x)>(beta);
                return std::fabs(way) < b ? way / b : static_cast<decltype(x)>((way > 0) - (way < 0));
              }));
}

at::Tensor HuberLoss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double delta) {
  TORCH_CHECK(delta > 0, "huber_loss does not support non-positive values for delta.");
  return Loss("huber_loss", self, target, {}, reduction, [delta](auto x, auto y) {
    const auto distance = std::fabs(x - y), d = static_cast<decltype(x)>(delta);
    return distance < d ? distance * distance / 2 : d * (distance - d / 2);
  });
}
at::Tensor& HuberLossOut(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double delta,
                         at::Tensor& out) {
  return Into(out, HuberLoss(self, target, reduction, delta));
}
at::Tensor& HuberLossBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                              int64_t reduction, double delta, at::Tensor& out) {
  return Into(out, Gradient("huber_loss_backward", grad, self, target, {}, reduction, [delta](auto x, auto y) {
                const auto d = static_cast<decltype(x)>(delta);
                return std::clamp(x - y, -d, d);
              }));
}

// Logarithms stop at -100, so that the loss is finite.
at::Tensor BinaryCrossEntropy(const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight,
                              int64_t reduction) {
  return Loss("binary_cross_entropy", self, target, weight, reduction, [](auto x, auto y) {
    using R = decltype(x);
    NPU_CHECK(x >= 0 && x <= 1, "[binary_cross_entropy] expected inputs between 0 and 1, got ", x);
    return (y - 1) * std::max(std::log1p(-x), R{-100}) - y * std::max(std::log(x), R{-100});
  });
}
at::Tensor& BinaryCrossEntropyOut(const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight,
                                  int64_t reduction, at::Tensor& out) {
  return Into(out, BinaryCrossEntropy(self, target, weight, reduction));
}
at::Tensor BinaryCrossEntropyBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                      const MaybeTensor& weight, int64_t reduction) {
  return Gradient("binary_cross_entropy_backward", grad, self, target, weight, reduction, [](auto x, auto y) {
    using R = decltype(x);
    return (x - y) / std::max((1 - x) * x, static_cast<R>(1e-12));
  });
}
at::Tensor& BinaryCrossEntropyBackwardOut(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& target,
                                          const MaybeTensor& weight, int64_t reduction, at::Tensor& out) {
  return Into(out, BinaryCrossEntropyBackward(grad, self, target, weight, reduction));
}

// torch composes it of operators that each round.
at::Tensor BinaryCrossEntropyWithLogits(const at::Tensor& self, const at::Tensor& target, const MaybeTensor& weight,
                                        const MaybeTensor& pos_weight, int64_t reduction) {
  constexpr const char* kName = "binary_cross_entropy_with_logits";
  const auto loss = [](auto x, auto y, auto positive) {
    const auto log_sigmoid = std::fmin(x, decltype(x){0}) - std::log1p(std::exp(-std::fabs(x)));
    return (1 - y) * x - (1 + (positive - 1) * y) * log_sigmoid;
  };
  if (Has(pos_weight)) return Loss(kName, self, target, weight, reduction, loss, *pos_weight);
  return Loss(kName, self, target, weight, reduction, [=](auto x, auto y) { return loss(x, y, decltype(x){1}); });
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

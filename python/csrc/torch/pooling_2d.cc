// Pools of images: [N, C, H, W] or [C, H, W].
#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_max_pool2d_backward_meta.h>
#include <ATen/ops/adaptive_max_pool2d_meta.h>
#include <ATen/ops/adaptive_max_pool2d_ops.h>
#include <ATen/ops/avg_pool2d_backward_meta.h>
#include <ATen/ops/avg_pool2d_backward_ops.h>
#include <ATen/ops/avg_pool2d_meta.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/max_pool2d_with_indices_backward_meta.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_meta.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/pooling.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

constexpr size_t k2 = 2;

std::tuple<at::Tensor&, at::Tensor&> MaxPool(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride,
                                             at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
                                             at::Tensor& out, at::Tensor& indices) {
  InferTwo<at::meta::structured_max_pool2d_with_indices>(out, indices, self, kernel, stride, padding, dilation,
                                                         ceil_mode);
  if (!IsNumber(self.scalar_type()))
    return FallBack<at::_ops::max_pool2d_with_indices_out>(self, kernel, stride, padding, dilation, ceil_mode, out,
                                                           indices);
  if (out.numel() == 0) return {out, indices};
  KernelCall call("MaxPool", "npu.aten");
  call.In(Dense(self), Batched(k2, self)).Set("dilations", ForEach(k2, dilation));
  Slide(k2, call, kernel, stride, padding, ceil_mode).Into({out, indices});
  return {out, indices};
}

at::Tensor& MaxPoolBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef kernel,
                            at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
                            const at::Tensor& indices, at::Tensor& out) {
  OutputMeta<at::meta::structured_max_pool2d_with_indices_backward>(out).meta(grad, self, kernel, stride, padding,
                                                                              dilation, ceil_mode, indices);
  return ToPlaces(k2, grad, self, indices, out);
}

std::tuple<at::Tensor&, at::Tensor&> AdaptiveMaxPool(const at::Tensor& self, at::IntArrayRef size, at::Tensor& out,
                                                     at::Tensor& indices) {
  InferTwo<at::meta::structured_adaptive_max_pool2d>(out, indices, self, size);
  if (!IsNumber(self.scalar_type())) return FallBack<at::_ops::adaptive_max_pool2d_out>(self, size, out, indices);
  if (out.numel() == 0) return {out, indices};
  KernelCall("AdaptiveMaxPool", "npu.aten").In(Dense(self), Batched(k2, self)).Host(size.vec()).Into({out, indices});
  return {out, indices};
}
at::Tensor& AdaptiveMaxPoolBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& indices,
                                    at::Tensor& out) {
  Infer<at::meta::structured_adaptive_max_pool2d_backward>(out, grad, self, indices);
  return ToPlaces(k2, grad, self, indices, out);
}

at::Tensor& AvgPool(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                    bool ceil_mode, bool count_padding, std::optional<int64_t> divisor, at::Tensor& out) {
  OutputMeta<at::meta::structured_avg_pool2d>(out).meta(self, kernel, stride, padding, ceil_mode, count_padding,
                                                        divisor);
  TORCH_CHECK(divisor != 0, "divisor must be not zero");
  if (!IsRealFloat(self.scalar_type()))
    return FallBack<at::_ops::avg_pool2d_out>(self, kernel, stride, padding, ceil_mode, count_padding, divisor, out);
  if (out.numel() == 0) return out;
  KernelCall call("AveragePool", divisor ? "npu.aten" : "");
  call.In(Dense(self), Batched(k2, self));
  SlideAverage(k2, call, kernel, stride, padding, ceil_mode, count_padding, divisor).Into(out);
  return out;
}
at::Tensor& AvgPoolBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef kernel,
                            at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode, bool count_padding,
                            std::optional<int64_t> divisor, at::Tensor& out) {
  OutputMeta<at::meta::structured_avg_pool2d_backward>(out).meta(grad, self, kernel, stride, padding, ceil_mode,
                                                                 count_padding, divisor);
  TORCH_CHECK(divisor != 0, "divisor must be not zero");
  if (!IsRealFloat(self.scalar_type()))
    return FallBack<at::_ops::avg_pool2d_backward_grad_input>(grad, self, kernel, stride, padding, ceil_mode,
                                                              count_padding, divisor, out);
  if (out.numel() == 0) return out;
  KernelCall call("AveragePoolGrad", "npu.aten");
  call.In(Dense(grad), Batched(k2, grad)).Host({self.size(-2), self.size(-1)});
  SlideAverage(k2, call, kernel, stride, padding, ceil_mode, count_padding, divisor).Into(out);
  return out;
}

void CheckImage(const char* op, const at::Tensor& self) {
  TORCH_CHECK((self.dim() == 3 || self.dim() == 4) && self.size(-1) > 0 && self.size(-2) > 0 && self.size(-3) > 0, op,
              "(): Expected 3D or 4D tensor with non-empty images, got ", self.sizes());
  TORCH_CHECK(IsRealFloat(self.scalar_type()), op, "(): expected real floats, got ", self.scalar_type());
}
at::Tensor AdaptiveAvgPool(const at::Tensor& self, at::IntArrayRef size) {
  CheckImage("adaptive_avg_pool2d", self);
  TORCH_CHECK(size.size() == 2 && size[0] >= 0 && size[1] >= 0,
              "adaptive_avg_pool2d: expected an output size of two, not negative, got ", size);
  std::vector<int64_t> sizes = self.sizes().vec();
  std::copy(size.begin(), size.end(), sizes.end() - 2);
  at::Tensor out = Empty(sizes, self.scalar_type(), self);
  if (out.numel() == 0) return out;
  KernelCall("AdaptiveAveragePool", "npu.aten").In(Dense(self), Batched(k2, self)).Host(size.vec()).Into(out);
  return out;
}
at::Tensor AdaptiveAvgPoolBackward(const at::Tensor& grad, const at::Tensor& self) {
  CheckImage("adaptive_avg_pool2d_backward", self);
  TORCH_CHECK(
      grad.dim() == self.dim() && grad.sizes().slice(0, self.dim() - 2) == self.sizes().slice(0, self.dim() - 2),
      "adaptive_avg_pool2d_backward: expected a gradient for an input of ", self.sizes(), ", got ", grad.sizes());
  at::Tensor out = Empty(self.sizes(), self.scalar_type(), self);
  if (out.numel() == 0) return out;
  KernelCall("AdaptiveAveragePoolGrad", "npu.aten")
      .In(Dense(grad, self.scalar_type()), Batched(k2, grad))
      .Host({self.size(-2), self.size(-1)})
      .Into(out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("max_pool2d_with_indices.out", &MaxPool);
  m.impl("max_pool2d_with_indices_backward.grad_input", &MaxPoolBackward);
  m.impl("adaptive_max_pool2d.out", &AdaptiveMaxPool);
  m.impl("adaptive_max_pool2d_backward.grad_input", &AdaptiveMaxPoolBackward);
  m.impl("avg_pool2d.out", &AvgPool);
  m.impl("avg_pool2d_backward.grad_input", &AvgPoolBackward);
  m.impl("_adaptive_avg_pool2d", &AdaptiveAvgPool);
  m.impl("_adaptive_avg_pool2d_backward", &AdaptiveAvgPoolBackward);
}

}  // namespace
}  // namespace npu::aten

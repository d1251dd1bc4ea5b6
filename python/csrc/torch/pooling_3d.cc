// Pools of volumes: [N, C, D, H, W] or [C, D, H, W].
#include <ATen/core/Tensor.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/adaptive_max_pool3d_backward_meta.h>
#include <ATen/ops/adaptive_max_pool3d_meta.h>
#include <ATen/ops/adaptive_max_pool3d_ops.h>
#include <ATen/ops/avg_pool3d_backward_meta.h>
#include <ATen/ops/avg_pool3d_backward_ops.h>
#include <ATen/ops/avg_pool3d_meta.h>
#include <ATen/ops/avg_pool3d_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool3d_with_indices_ops.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/pooling.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

constexpr size_t k3 = 3;

// The sizes of the result of max_pool3d, whose rules torch has in its kernels, not in a meta function.
std::vector<int64_t> MaxPool3dSizes(const char* op, const at::Tensor& self, at::IntArrayRef kernel,
                                    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                    bool ceil_mode) {
  const auto check = [&](const char* name, at::IntArrayRef values, bool optional, const char* allowed) {
    TORCH_CHECK(values.size() == 1 || values.size() == k3 || (optional && values.empty()), "max_pool3d: ", name,
                " must ", allowed, "a single int, or a tuple of three ints");
  };
  check("kernel_size", kernel, false, "either be ");
  check("stride", stride, true, "either be omitted, ");
  check("padding", padding, false, "either be ");
  check("dilation", dilation, false, "be either ");
  TORCH_CHECK(self.dim() == 4 || self.dim() == 5,
              "max_pool3d: Expected 4D or 5D tensor for input, but got: ", self.sizes());
  const auto k = ForEach(k3, kernel), s = ForEach(k3, stride.empty() ? kernel : stride), p = ForEach(k3, padding),
             d = ForEach(k3, dilation);
  std::array<int64_t, k3> in, out;
  for (size_t i = 0; i < k3; ++i) {
    in[i] = self.size(static_cast<int64_t>(i) - 3);
    out[i] = at::native::pooling_output_shape<int64_t>(in[i], k[i], p[i], s[i], d[i], ceil_mode);
  }
  const auto narrow = [](const std::vector<int64_t>& values, size_t i) {
    return at::native::safe_downcast<int, int64_t>(values[i]);
  };
  at::native::pool3d_shape_check(self, self.size(-4), narrow(k, 0), narrow(k, 1), narrow(k, 2), narrow(s, 0),
                                 narrow(s, 1), narrow(s, 2), narrow(p, 0), narrow(p, 1), narrow(p, 2), narrow(d, 0),
                                 narrow(d, 1), narrow(d, 2), in[0], in[1], in[2], out[0], out[1], out[2], op);
  std::vector<int64_t> sizes = self.sizes().vec();
  std::copy(out.begin(), out.end(), sizes.end() - 3);
  return sizes;
}

std::tuple<at::Tensor&, at::Tensor&> MaxPool3dOut(const at::Tensor& self, at::IntArrayRef kernel,
                                                  at::IntArrayRef stride, at::IntArrayRef padding,
                                                  at::IntArrayRef dilation, bool ceil_mode, at::Tensor& out,
                                                  at::Tensor& indices) {
  const auto sizes = MaxPool3dSizes("max_pool3d_with_indices", self, kernel, stride, padding, dilation, ceil_mode);
  if (!IsNumber(self.scalar_type()))
    return FallBack<at::_ops::max_pool3d_with_indices_out>(self, kernel, stride, padding, dilation, ceil_mode, out,
                                                           indices);
  PrepareOutput(out, sizes, {}, self.options());
  PrepareOutput(indices, sizes, {}, self.options().dtype(at::kLong));
  if (out.numel() == 0) return {out, indices};
  KernelCall call("MaxPool", "npu.aten");
  call.In(Dense(self), Batched(k3, self)).Set("dilations", ForEach(k3, dilation));
  Slide(k3, call, kernel, stride, padding, ceil_mode).Into({out, indices});
  return {out, indices};
}
std::tuple<at::Tensor, at::Tensor> MaxPool3d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride,
                                             at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  const auto sizes = MaxPool3dSizes("max_pool3d_with_indices", self, kernel, stride, padding, dilation, ceil_mode);
  if (!IsNumber(self.scalar_type()))
    return FallBack<at::_ops::max_pool3d_with_indices>(self, kernel, stride, padding, dilation, ceil_mode);
  const at::TensorOptions options = self.options().memory_format(self.suggest_memory_format());
  at::Tensor out = at::empty(sizes, options), indices = at::empty(sizes, options.dtype(at::kLong));
  MaxPool3dOut(self, kernel, stride, padding, dilation, ceil_mode, out, indices);
  return {out, indices};
}

at::Tensor& MaxPool3dBackwardOut(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef kernel,
                                 at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                                 bool ceil_mode, const at::Tensor& indices, at::Tensor& out) {
  const auto sizes =
      MaxPool3dSizes("max_pool3d_with_indices_backward", self, kernel, stride, padding, dilation, ceil_mode);
  TORCH_CHECK(grad.sizes() == sizes && indices.sizes() == sizes && grad.scalar_type() == self.scalar_type(),
              "max_pool3d_with_indices_backward: expected a gradient of type ", self.scalar_type(),
              " and indices of the result's sizes ", at::IntArrayRef(sizes), ", got ", grad.scalar_type(), " ",
              grad.sizes(), " and ", indices.sizes());
  PrepareOutput(out, self.sizes(), {}, self.options());
  return ToPlaces(k3, grad, self, indices, out);
}
at::Tensor MaxPool3dBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef kernel,
                             at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
                             const at::Tensor& indices) {
  at::Tensor out = at::empty(self.sizes(), self.options().memory_format(self.suggest_memory_format()));
  MaxPool3dBackwardOut(grad, self, kernel, stride, padding, dilation, ceil_mode, indices, out);
  return out;
}

std::tuple<at::Tensor&, at::Tensor&> AdaptiveMaxPool3d(const at::Tensor& self, at::IntArrayRef size, at::Tensor& out,
                                                       at::Tensor& indices) {
  InferTwo<at::meta::structured_adaptive_max_pool3d>(out, indices, self, size);
  if (!IsNumber(self.scalar_type())) return FallBack<at::_ops::adaptive_max_pool3d_out>(self, size, out, indices);
  if (out.numel() == 0) return {out, indices};
  KernelCall("AdaptiveMaxPool", "npu.aten").In(Dense(self), Batched(k3, self)).Host(size.vec()).Into({out, indices});
  return {out, indices};
}
at::Tensor& AdaptiveMaxPool3dBackward(const at::Tensor& grad, const at::Tensor& self, const at::Tensor& indices,
                                      at::Tensor& out) {
  Infer<at::meta::structured_adaptive_max_pool3d_backward>(out, grad, self, indices);
  return ToPlaces(k3, grad, self, indices, out);
}

at::Tensor& AvgPool3d(const at::Tensor& self, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
                      bool ceil_mode, bool count_padding, std::optional<int64_t> divisor, at::Tensor& out) {
  OutputMeta<at::meta::structured_avg_pool3d>(out).meta(self, kernel, stride, padding, ceil_mode, count_padding,
                                                        divisor);
  if (!IsRealFloat(self.scalar_type()))
    return FallBack<at::_ops::avg_pool3d_out>(self, kernel, stride, padding, ceil_mode, count_padding, divisor, out);
  if (out.numel() == 0) return out;
  KernelCall call("AveragePool", divisor ? "npu.aten" : "");
  call.In(Dense(self), Batched(k3, self));
  SlideAverage(k3, call, kernel, stride, padding, ceil_mode, count_padding, divisor).Into(out);
  return out;
}
at::Tensor& AvgPool3dBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef kernel,
                              at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode, bool count_padding,
                              std::optional<int64_t> divisor, at::Tensor& out) {
  OutputMeta<at::meta::structured_avg_pool3d_backward>(out).meta(grad, self, kernel, stride, padding, ceil_mode,
                                                                 count_padding, divisor);
  if (!IsRealFloat(self.scalar_type()))
    return FallBack<at::_ops::avg_pool3d_backward_grad_input>(grad, self, kernel, stride, padding, ceil_mode,
                                                              count_padding, divisor, out);
  if (out.numel() == 0) return out;
  KernelCall call("AveragePoolGrad", "npu.aten");
  call.In(Dense(grad), Batched(k3, grad)).Host(self.sizes().slice(self.dim() - 3).vec());
  SlideAverage(k3, call, kernel, stride, padding, ceil_mode, count_padding, divisor).Into(out);
  return out;
}

void CheckVolume(const char* op, const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 4 || self.dim() == 5, op, "(): Expected 4D or 5D tensor, but got ", self.sizes());
  for (int64_t d = 1; d <= 3; ++d)
    TORCH_CHECK(self.size(-d) > 0, op, "(): Expected volumes that are not empty, but got ", self.sizes());
  TORCH_CHECK(IsRealFloat(self.scalar_type()), op, "(): expected real floats, got ", self.scalar_type());
}
at::Tensor AdaptiveAvgPool3d(const at::Tensor& self, at::IntArrayRef size) {
  TORCH_CHECK(size.size() == k3, "adaptive_avg_pool3d: output_size must be 3");
  TORCH_CHECK(std::all_of(size.begin(), size.end(), [](int64_t n) { return n >= 0; }),
              "adaptive_avg_pool3d: elements of output_size must be greater than or equal to 0 but received {", size[0],
              ", ", size[1], ",", size[2], "}");
  CheckVolume("adaptive_avg_pool3d", self);
  std::vector<int64_t> sizes = self.sizes().vec();
  std::copy(size.begin(), size.end(), sizes.end() - 3);
  at::Tensor out = Empty(sizes, self.scalar_type(), self);
  if (out.numel() == 0) return out;
  KernelCall("AdaptiveAveragePool", "npu.aten").In(Dense(self), Batched(k3, self)).Host(size.vec()).Into(out);
  return out;
}
at::Tensor AdaptiveAvgPool3dBackward(const at::Tensor& grad, const at::Tensor& self) {
  CheckVolume("adaptive_avg_pool3d_backward", self);
  TORCH_CHECK(
      grad.dim() == self.dim() && grad.sizes().slice(0, self.dim() - 3) == self.sizes().slice(0, self.dim() - 3),
      "adaptive_avg_pool3d_backward: expected a gradient for an input of ", self.sizes(), ", got ", grad.sizes());
  at::Tensor out = Empty(self.sizes(), self.scalar_type(), self);
  if (out.numel() == 0) return out;
  KernelCall("AdaptiveAveragePoolGrad", "npu.aten")
      .In(Dense(grad, self.scalar_type()), Batched(k3, grad))
      .Host(self.sizes().slice(self.dim() - 3).vec())
      .Into(out);
  return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("max_pool3d_with_indices", &MaxPool3d);
  m.impl("max_pool3d_with_indices.out", &MaxPool3dOut);
  m.impl("max_pool3d_with_indices_backward", &MaxPool3dBackward);
  m.impl("max_pool3d_with_indices_backward.grad_input", &MaxPool3dBackwardOut);
  m.impl("adaptive_max_pool3d.out", &AdaptiveMaxPool3d);
  m.impl("adaptive_max_pool3d_backward.grad_input", &AdaptiveMaxPool3dBackward);
  m.impl("avg_pool3d.out", &AvgPool3d);
  m.impl("avg_pool3d_backward.grad_input", &AvgPool3dBackward);
  m.impl("_adaptive_avg_pool3d", &AdaptiveAvgPool3d);
  m.impl("_adaptive_avg_pool3d_backward", &AdaptiveAvgPool3dBackward);
}

}  // namespace
}  // namespace npu::aten

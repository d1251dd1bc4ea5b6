// Reflection and replication padding. torch itself pads with a constant by filling and copying.
#include <ATen/ops/reflection_pad1d_backward_ops.h>
#include <ATen/ops/reflection_pad1d_meta.h>
#include <ATen/ops/reflection_pad1d_ops.h>
#include <ATen/ops/reflection_pad2d_backward_ops.h>
#include <ATen/ops/reflection_pad2d_ops.h>
#include <ATen/ops/reflection_pad3d_backward_ops.h>
#include <ATen/ops/reflection_pad3d_meta.h>
#include <ATen/ops/reflection_pad3d_ops.h>
#include <ATen/ops/replication_pad1d_backward_ops.h>
#include <ATen/ops/replication_pad1d_meta.h>
#include <ATen/ops/replication_pad1d_ops.h>
#include <ATen/ops/replication_pad2d_backward_ops.h>
#include <ATen/ops/replication_pad2d_meta.h>
#include <ATen/ops/replication_pad2d_ops.h>
#include <ATen/ops/replication_pad3d_backward_ops.h>
#include <ATen/ops/replication_pad3d_meta.h>
#include <ATen/ops/replication_pad3d_ops.h>
#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/storage.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

enum class Border { kReflection, kReplication };

// The sizes of a padded tensor; `padding` has two numbers per dimension, the last dimension first.
std::vector<int64_t> PaddedSizes(const at::Tensor& self, at::IntArrayRef padding) {
  std::vector<int64_t> sizes = self.sizes().vec();
  for (size_t d = 0; d < padding.size() / 2; ++d) sizes[sizes.size() - 1 - d] += padding[2 * d] + padding[2 * d + 1];
  return sizes;
}

// Pads in the operators' order: those before each dimension, then those after.
std::vector<int64_t> PadsOf(int64_t rank, at::IntArrayRef padding) {
  std::vector<int64_t> pads(static_cast<size_t>(2 * rank));
  for (size_t d = 0; d < padding.size() / 2; ++d) {
    pads[static_cast<size_t>(rank) - 1 - d] = padding[2 * d];
    pads[static_cast<size_t>(2 * rank) - 1 - d] = padding[2 * d + 1];
  }
  return pads;
}
std::string NameOf(Border border) { return border == Border::kReflection ? "reflect" : "edge"; }

void LaunchPad(Border border, const at::Tensor& self, at::IntArrayRef padding, at::Tensor& out) {
  if (out.numel() == 0) return;
  KernelCall("Pad").In(Dense(self)).Host(PadsOf(self.dim(), padding)).Set("mode", NameOf(border)).Into(out);
}

template <class Meta, class Op, Border border>
at::Tensor& Pad(const at::Tensor& self, at::IntArrayRef padding, at::Tensor& out) {
  Infer<Meta>(out, self, padding);
  if (!IsNumber(self.scalar_type())) return FallBack<Op>(self, padding, out);
  LaunchPad(border, self, padding, out);
  return out;
}

// The only one without a meta function.
at::Tensor& ReflectionPad2dOut(const at::Tensor& self, at::IntArrayRef padding, at::Tensor& out) {
  TORCH_CHECK(padding.size() == 4, "padding size is expected to be 4");
  TORCH_CHECK((self.dim() == 3 || self.dim() == 4) && self.size(-3) > 0 && self.size(-2) > 0 && self.size(-1) > 0,
              "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for "
              "input, but got: ",
              self.sizes());
  for (size_t d = 0; d < 2; ++d) {
    const int64_t size = self.size(-1 - static_cast<int64_t>(d));
    TORCH_CHECK(padding[2 * d] < size && padding[2 * d + 1] < size,
                "Padding size should be less than the corresponding input dimension, but got: padding (",
                padding[2 * d], ", ", padding[2 * d + 1], ") at dimension ", self.dim() - 1 - static_cast<int64_t>(d),
                " of input ", self.sizes());
  }
  const std::vector<int64_t> sizes = PaddedSizes(self, padding);
  TORCH_CHECK(sizes[sizes.size() - 1] > 0 && sizes[sizes.size() - 2] > 0, "input ", self.sizes(),
              " is too small: padded by ", padding, " it would be ", sizes);
  at::native::resize_output(out, sizes);
  if (!IsNumber(self.scalar_type())) return FallBack<at::_ops::reflection_pad2d_out>(self, padding, out);
  LaunchPad(Border::kReflection, self, padding, out);
  return out;
}
at::Tensor ReflectionPad2d(const at::Tensor& self, at::IntArrayRef padding) {
  at::Tensor out = Empty({0}, self.scalar_type(), self);
  return ReflectionPad2dOut(self, padding, out);
}

template <class Op, Border border>
at::Tensor& PadBackwardOut(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef padding, at::Tensor& out) {
  const size_t rank = padding.size() / 2;
  TORCH_CHECK(padding.size() % 2 == 0 && self.dim() > static_cast<int64_t>(rank), "pad_backward: expected more than ",
              rank, " dimensions, got an input of ", self.sizes());
  const std::vector<int64_t> sizes = PaddedSizes(self, padding);
  TORCH_CHECK(grad.sizes() == at::IntArrayRef(sizes), "pad_backward: expected a gradient of ", sizes, ", got ",
              grad.sizes());
  at::native::resize_output(out, self.sizes());
  if (!IsRealFloat(self.scalar_type())) return FallBack<Op>(grad, self, padding, out);
  if (out.numel() == 0) return out;
  for (size_t d = 0; border == Border::kReflection && d < rank; ++d) {
    const int64_t size = self.size(-1 - static_cast<int64_t>(d));
    TORCH_CHECK(padding[2 * d] < size && padding[2 * d + 1] < size, "expected a padding below the size ", size,
                ", got (", padding[2 * d], ", ", padding[2 * d + 1], ")");
  }
  KernelCall("PadGrad", "npu.aten")
      .In(Dense(grad))
      .Host(self.sizes().vec())
      .Host(PadsOf(self.dim(), padding))
      .Set("mode", NameOf(border))
      .Into(out);
  return out;
}
template <class Op, Border border>
at::Tensor PadBackward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef padding) {
  at::Tensor out = Empty({0}, self.scalar_type(), self);
  return PadBackwardOut<Op, border>(grad, self, padding, out);
}

#define NPU_PAD_FORWARD(name, border) \
  m.impl(#name ".out", &Pad<at::meta::structured_##name, at::_ops::name##_out, border>)
#define NPU_PAD_BACKWARD(name, border)                                                   \
  m.impl(#name "_backward", &PadBackward<at::_ops::name##_backward_grad_input, border>); \
  m.impl(#name "_backward.grad_input", &PadBackwardOut<at::_ops::name##_backward_grad_input, border>)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  NPU_PAD_FORWARD(reflection_pad1d, Border::kReflection);
  m.impl("reflection_pad2d", &ReflectionPad2d);
  m.impl("reflection_pad2d.out", &ReflectionPad2dOut);
  NPU_PAD_FORWARD(reflection_pad3d, Border::kReflection);
  NPU_PAD_FORWARD(replication_pad1d, Border::kReplication);
  NPU_PAD_FORWARD(replication_pad2d, Border::kReplication);
  NPU_PAD_FORWARD(replication_pad3d, Border::kReplication);
  NPU_PAD_BACKWARD(reflection_pad1d, Border::kReflection);
  NPU_PAD_BACKWARD(reflection_pad2d, Border::kReflection);
  NPU_PAD_BACKWARD(reflection_pad3d, Border::kReflection);
  NPU_PAD_BACKWARD(replication_pad1d, Border::kReplication);
  NPU_PAD_BACKWARD(replication_pad2d, Border::kReplication);
  NPU_PAD_BACKWARD(replication_pad3d, Border::kReplication);
}

#undef NPU_PAD_FORWARD
#undef NPU_PAD_BACKWARD

}  // namespace
}  // namespace npu::aten

// Resized images: each position's nearest neighbour, or a weighted sum of the neighbours.
#include <ATen/ops/_upsample_bicubic2d_aa_backward_meta.h>
#include <ATen/ops/_upsample_bicubic2d_aa_backward_ops.h>
#include <ATen/ops/_upsample_bicubic2d_aa_meta.h>
#include <ATen/ops/_upsample_bicubic2d_aa_ops.h>
#include <ATen/ops/_upsample_bilinear2d_aa_backward_meta.h>
#include <ATen/ops/_upsample_bilinear2d_aa_backward_ops.h>
#include <ATen/ops/_upsample_bilinear2d_aa_meta.h>
#include <ATen/ops/_upsample_bilinear2d_aa_ops.h>
#include <ATen/ops/_upsample_lanczos2d_aa_backward_meta.h>
#include <ATen/ops/_upsample_lanczos2d_aa_backward_ops.h>
#include <ATen/ops/_upsample_lanczos2d_aa_meta.h>
#include <ATen/ops/_upsample_lanczos2d_aa_ops.h>
#include <ATen/ops/_upsample_nearest_exact1d_backward_meta.h>
#include <ATen/ops/_upsample_nearest_exact1d_backward_ops.h>
#include <ATen/ops/_upsample_nearest_exact1d_meta.h>
#include <ATen/ops/_upsample_nearest_exact1d_ops.h>
#include <ATen/ops/_upsample_nearest_exact2d_backward_meta.h>
#include <ATen/ops/_upsample_nearest_exact2d_backward_ops.h>
#include <ATen/ops/_upsample_nearest_exact2d_meta.h>
#include <ATen/ops/_upsample_nearest_exact2d_ops.h>
#include <ATen/ops/_upsample_nearest_exact3d_backward_meta.h>
#include <ATen/ops/_upsample_nearest_exact3d_backward_ops.h>
#include <ATen/ops/_upsample_nearest_exact3d_meta.h>
#include <ATen/ops/_upsample_nearest_exact3d_ops.h>
#include <ATen/ops/upsample_bicubic2d_backward_meta.h>
#include <ATen/ops/upsample_bicubic2d_backward_ops.h>
#include <ATen/ops/upsample_bicubic2d_meta.h>
#include <ATen/ops/upsample_bicubic2d_ops.h>
#include <ATen/ops/upsample_bilinear2d_backward_meta.h>
#include <ATen/ops/upsample_bilinear2d_backward_ops.h>
#include <ATen/ops/upsample_bilinear2d_meta.h>
#include <ATen/ops/upsample_bilinear2d_ops.h>
#include <ATen/ops/upsample_linear1d_backward_meta.h>
#include <ATen/ops/upsample_linear1d_backward_ops.h>
#include <ATen/ops/upsample_linear1d_meta.h>
#include <ATen/ops/upsample_linear1d_ops.h>
#include <ATen/ops/upsample_nearest1d_backward_meta.h>
#include <ATen/ops/upsample_nearest1d_backward_ops.h>
#include <ATen/ops/upsample_nearest1d_meta.h>
#include <ATen/ops/upsample_nearest1d_ops.h>
#include <ATen/ops/upsample_nearest2d_backward_meta.h>
#include <ATen/ops/upsample_nearest2d_backward_ops.h>
#include <ATen/ops/upsample_nearest2d_meta.h>
#include <ATen/ops/upsample_nearest2d_ops.h>
#include <ATen/ops/upsample_nearest3d_backward_meta.h>
#include <ATen/ops/upsample_nearest3d_backward_ops.h>
#include <ATen/ops/upsample_nearest3d_meta.h>
#include <ATen/ops/upsample_nearest3d_ops.h>
#include <ATen/ops/upsample_trilinear3d_backward_meta.h>
#include <ATen/ops/upsample_trilinear3d_backward_ops.h>
#include <ATen/ops/upsample_trilinear3d_meta.h>
#include <ATen/ops/upsample_trilinear3d_ops.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

using Scale = std::optional<double>;

// Smooth: antialiased.
enum class UpsampleMode { kNearest, kNearestExact, kLinear, kCubic, kSmoothLinear, kSmoothCubic, kSmoothLanczos };

const char* NameOf(UpsampleMode mode) {
  switch (mode) {
    case UpsampleMode::kNearest:
      return "nearest";
    case UpsampleMode::kNearestExact:
      return "nearest-exact";
    case UpsampleMode::kLinear:
    case UpsampleMode::kSmoothLinear:
      return "linear";
    case UpsampleMode::kCubic:
    case UpsampleMode::kSmoothCubic:
      return "cubic";
    case UpsampleMode::kSmoothLanczos:
      return "lanczos";
  }
  return "";
}

// Passes the sizes of the last dimensions, one for each scale; a scale of 0 is derived from the sizes.
template <class... Scales>
KernelCall& Sample(KernelCall& call, UpsampleMode mode, const at::Tensor& from, at::IntArrayRef sizes,
                   bool align_corners, Scales... given) {
  return call.In(Dense(from))
      .Host(sizes.slice(sizes.size() - sizeof...(given)).vec())
      .Set("mode", std::string(NameOf(mode)))
      .Set("antialias", static_cast<int64_t>(mode >= UpsampleMode::kSmoothLinear))
      .Set("align_corners", static_cast<int64_t>(align_corners))
      .Set("scales", std::vector<double>{(given && *given > 0 ? *given : 0.0)...});
}
template <class... Scales>
KernelCall& Sample(KernelCall& call, UpsampleMode mode, const at::Tensor& from, at::IntArrayRef sizes, Scale first,
                   Scales... others) {
  return Sample(call, mode, from, sizes, false, first, others...);
}

bool CanUpsample(UpsampleMode mode, const at::Tensor& t) {
  const bool copies = mode == UpsampleMode::kNearest || mode == UpsampleMode::kNearestExact;
  return IsRealFloat(t.scalar_type()) || (copies && IsNumber(t.scalar_type()));
}

// `Args`: whether corners are aligned, if the mode has that, and a scale per dimension.
template <class Meta, class Op, UpsampleMode mode, class... Args>
struct UpsampleForward {
  static at::Tensor& Into(const at::Tensor& self, at::IntArrayRef size, Args... args, at::Tensor& out) {
    Infer<Meta>(out, self, size, args...);
    if (!CanUpsample(mode, self)) return FallBack<Op>(self, size, args..., out);
    if (out.numel() == 0) return out;
    KernelCall call("Upsample", "npu.aten");
    Sample(call, mode, self, out.sizes(), args...).Into(out);
    return out;
  }
};
template <class Meta, class Op, UpsampleMode mode, class... Args>
struct UpsampleBackward {
  static at::Tensor& Into(const at::Tensor& grad, at::IntArrayRef size, at::IntArrayRef input_size, Args... args,
                          at::Tensor& out) {
    Infer<Meta>(out, grad, size, input_size, args...);
    if (!IsRealFloat(grad.scalar_type())) return FallBack<Op>(grad, size, input_size, args..., out);
    if (out.numel() == 0) return out;
    KernelCall call("UpsampleGrad", "npu.aten");
    Sample(call, mode, grad, out.sizes(), args...).Into(out);
    return out;
  }
};

#define NPU_UPSAMPLE(name, mode, ...)                                                                                 \
  m.impl(#name ".out", &UpsampleForward<at::meta::structured_##name, at::_ops::name##_out, mode, __VA_ARGS__>::Into); \
  m.impl(#name "_backward.grad_input",                                                                                \
         &UpsampleBackward<at::meta::structured_##name##_backward, at::_ops::name##_backward_grad_input, mode,        \
                           __VA_ARGS__>::Into)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  NPU_UPSAMPLE(upsample_nearest1d, UpsampleMode::kNearest, Scale);
  NPU_UPSAMPLE(upsample_nearest2d, UpsampleMode::kNearest, Scale, Scale);
  NPU_UPSAMPLE(upsample_nearest3d, UpsampleMode::kNearest, Scale, Scale, Scale);
  NPU_UPSAMPLE(_upsample_nearest_exact1d, UpsampleMode::kNearestExact, Scale);
  NPU_UPSAMPLE(_upsample_nearest_exact2d, UpsampleMode::kNearestExact, Scale, Scale);
  NPU_UPSAMPLE(_upsample_nearest_exact3d, UpsampleMode::kNearestExact, Scale, Scale, Scale);
  NPU_UPSAMPLE(upsample_linear1d, UpsampleMode::kLinear, bool, Scale);
  NPU_UPSAMPLE(upsample_bilinear2d, UpsampleMode::kLinear, bool, Scale, Scale);
  NPU_UPSAMPLE(upsample_trilinear3d, UpsampleMode::kLinear, bool, Scale, Scale, Scale);
  NPU_UPSAMPLE(upsample_bicubic2d, UpsampleMode::kCubic, bool, Scale, Scale);
  NPU_UPSAMPLE(_upsample_bilinear2d_aa, UpsampleMode::kSmoothLinear, bool, Scale, Scale);
  NPU_UPSAMPLE(_upsample_bicubic2d_aa, UpsampleMode::kSmoothCubic, bool, Scale, Scale);
  NPU_UPSAMPLE(_upsample_lanczos2d_aa, UpsampleMode::kSmoothLanczos, bool, Scale, Scale);
}

#undef NPU_UPSAMPLE

}  // namespace
}  // namespace npu::aten

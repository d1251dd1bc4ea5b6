// Images made larger or smaller: each position's nearest neighbour, or a weighted sum of the neighbours, with torch's
// arithmetic of positions.
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

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "python/csrc/torch/fallback.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/resample.h"
#include "python/csrc/torch/structured.h"

namespace npu::aten {
namespace {

enum class UpsampleMode { kNearest, kNearestExact, kLinear, kCubic };
using Scale = std::optional<double>;

template <class R>
R StepOf(int64_t in, int64_t out, bool align_corners, Scale scale) {
  if (align_corners) return out > 1 ? static_cast<R>(in - 1) / static_cast<R>(out - 1) : R{0};
  return scale && *scale > 0 ? static_cast<R>(1 / *scale) : static_cast<R>(in) / static_cast<R>(out);
}

Taps NearestTaps(bool exact, int64_t in, int64_t out, Scale scale) {
  Taps taps{in, 1, {}, {}};
  const float step = StepOf<float>(in, out, false, scale);
  for (int64_t o = 0; o < out; ++o) {
    const float position = (static_cast<float>(o) + (exact ? 0.5f : 0.0f)) * step;
    const bool plain = !exact && (out == in || out == 2 * in);  // no rounding may move these
    const float below = std::fmin(std::floor(position), static_cast<float>(in - 1));
    taps.from.push_back(plain ? o * in / out : std::min(static_cast<int64_t>(below), in - 1));
  }
  return taps;
}

// Where the sums' neighbours lie is reckoned in R, float but for images of double.
template <class R>
Taps WeightedTaps(bool cubic, int64_t in, int64_t out, bool align_corners, Scale scale) {
  Taps taps{in, cubic ? 4 : 2, {}, {}};
  const R step = StepOf<R>(in, out, align_corners, scale);
  const auto tap = [&](int64_t from, R weight) {
    taps.from.push_back(std::clamp<int64_t>(from, 0, in - 1));
    taps.weights.push_back(static_cast<double>(weight));
  };
  for (int64_t o = 0; o < out; ++o) {
    R position = align_corners ? step * static_cast<R>(o) : step * (static_cast<R>(o) + R(0.5)) - R(0.5);
    if (!cubic) position = out == in ? static_cast<R>(o) : std::max(position, R{0});
    position = std::fmin(position, static_cast<R>(in + 2));  // farther out all neighbours are the last one
    const R below = std::floor(position), t = position - below;
    const auto first = static_cast<int64_t>(below);
    if (!cubic) {
      tap(first, 1 - t);
      tap(first + 1, t);
      continue;
    }
    constexpr R a = -0.75;
    const auto near = [](R d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    const auto far = [](R d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    tap(first - 1, far(t + 1));
    tap(first, near(t));
    tap(first + 1, near(1 - t));
    tap(first + 2, far(2 - t));
  }
  return taps;
}

Taps TapsOf(UpsampleMode mode, at::ScalarType dtype, int64_t in, int64_t out, bool align_corners, Scale scale) {
  if (mode == UpsampleMode::kNearest || mode == UpsampleMode::kNearestExact)
    return NearestTaps(mode == UpsampleMode::kNearestExact, in, out, scale);
  const auto make = dtype == at::kDouble ? &WeightedTaps<double> : &WeightedTaps<float>;
  return make(mode == UpsampleMode::kCubic, in, out, align_corners, scale);
}

// One table for each of the last dimensions, outermost first, as their scales are.
template <class... Scales>
std::vector<Taps> SampledAxes(UpsampleMode mode, at::ScalarType dtype, at::IntArrayRef in, at::IntArrayRef out,
                              bool align_corners, Scales... given) {
  const std::array scales{given...};
  std::vector<Taps> axes;
  for (size_t d = 0; d < scales.size(); ++d)
    axes.push_back(TapsOf(mode, dtype, in[in.size() - scales.size() + d], out[out.size() - scales.size() + d],
                          align_corners, scales[d]));
  return axes;
}
template <class... Scales>
std::vector<Taps> SampledAxes(UpsampleMode mode, at::ScalarType dtype, at::IntArrayRef in, at::IntArrayRef out,
                              Scale first, Scales... others) {
  return SampledAxes(mode, dtype, in, out, false, first, others...);
}

bool CanUpsample(UpsampleMode mode, const at::Tensor& t) {
  const bool copies = mode == UpsampleMode::kNearest || mode == UpsampleMode::kNearestExact;
  return IsRealFloat(t.scalar_type()) || (copies && IsNumber(t.scalar_type()));
}

// `Args`: whether corners are aligned, where the mode has it, and a scale per dimension.
template <class Meta, class Op, UpsampleMode mode, class... Args>
struct UpsampleForward {
  static at::Tensor& Into(const at::Tensor& self, at::IntArrayRef size, Args... args, at::Tensor& out) {
    Infer<Meta>(out, self, size, args...);
    if (!CanUpsample(mode, self)) return FallBack<Op>(self, size, args..., out);
    Resample("upsample", SampledAxes(mode, self.scalar_type(), self.sizes(), out.sizes(), args...), self, out);
    return out;
  }
};
template <class Meta, class Op, UpsampleMode mode, class... Args>
struct UpsampleBackward {
  static at::Tensor& Into(const at::Tensor& grad, at::IntArrayRef size, at::IntArrayRef input_size, Args... args,
                          at::Tensor& out) {
    Infer<Meta>(out, grad, size, input_size, args...);
    if (!IsRealFloat(grad.scalar_type())) return FallBack<Op>(grad, size, input_size, args..., out);
    ResampleBackward("upsample_backward", SampledAxes(mode, grad.scalar_type(), input_size, grad.sizes(), args...),
                     grad, out);
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
}

#undef NPU_UPSAMPLE

}  // namespace
}  // namespace npu::aten

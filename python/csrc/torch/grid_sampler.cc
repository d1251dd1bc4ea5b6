// Images and volumes sampled at positions given by a grid, and their gradients.
#include <ATen/core/Tensor.h>
#include <ATen/native/GridSamplerUtils.h>
#include <torch/library.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "python/csrc/torch/kernel_call.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"

namespace npu::aten {
namespace {

void CheckGrid(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation_mode) {
  at::native::check_grid_sampler_common(input, grid);
  if (input.dim() == 4)
    at::native::check_grid_sampler_2d(input, grid);
  else
    at::native::check_grid_sampler_3d(input, grid, interpolation_mode);
  TORCH_CHECK(IsRealFloat(input.scalar_type()) && input.scalar_type() == grid.scalar_type(),
              "grid_sampler(): expected input and grid of one type of real floats, got ", input.scalar_type(), " and ",
              grid.scalar_type());
}

KernelCall& How(KernelCall& call, int64_t interpolation_mode, int64_t padding_mode, bool align_corners) {
  static constexpr std::array kModes = {"linear", "nearest", "cubic"}, kPaddings = {"zeros", "border", "reflection"};
  const auto named = [](const auto& names, int64_t i) {
    TORCH_CHECK(i >= 0 && i < 3, "grid_sampler(): expected modes between 0 and 2, got ", i);
    return std::string(names[static_cast<size_t>(i)]);
  };
  return call.Set("mode", named(kModes, interpolation_mode))
      .Set("padding_mode", named(kPaddings, padding_mode))
      .Set("align_corners", static_cast<int64_t>(align_corners));
}

at::Tensor GridSample(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation_mode, int64_t padding_mode,
                      bool align_corners) {
  CheckGrid(input, grid, interpolation_mode);
  KernelCall call("GridSample");
  call.In(Dense(input)).In(Dense(grid));
  return How(call, interpolation_mode, padding_mode, align_corners).One();
}

std::tuple<at::Tensor, at::Tensor> GridSampleBackward(const at::Tensor& grad, const at::Tensor& input,
                                                      const at::Tensor& grid, int64_t interpolation_mode,
                                                      int64_t padding_mode, bool align_corners,
                                                      std::array<bool, 2> wanted) {
  CheckGrid(input, grid, interpolation_mode);
  KernelCall call("GridSampleGrad", "npu.aten");
  call.In(Dense(grad, input.scalar_type())).In(Dense(input)).In(Dense(grid));
  const std::vector<at::Tensor> results =
      How(call, interpolation_mode, padding_mode, align_corners).Run(wanted[0] ? 2 : 1);
  return {wanted[0] ? results[1] : at::Tensor(), results[0]};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  Operators m(library);
  m.impl("grid_sampler_2d", &GridSample);
  m.impl("grid_sampler_2d_backward", &GridSampleBackward);
  m.impl("grid_sampler_3d", &GridSample);
  m.impl("grid_sampler_3d_backward", &GridSampleBackward);
}

}  // namespace
}  // namespace npu::aten

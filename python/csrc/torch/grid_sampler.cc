// Images and volumes read at positions that a grid names, and their gradients. Each dimension has its own few taps:
// places of the input with weights, and the slopes of these by the grid's coordinate.
#include <ATen/core/Tensor.h>
#include <ATen/native/GridSampler.h>
#include <ATen/native/UpSample.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <tuple>
#include <vector>

#include "ep/runtime/thread_pool.h"
#include "python/csrc/torch/elementwise.h"
#include "python/csrc/torch/numbers.h"
#include "python/csrc/torch/operators.h"
#include "python/csrc/torch/streams.h"

namespace npu::aten {
namespace {

using at::native::GridSamplerInterpolation;
using at::native::GridSamplerPadding;

template <class R>
struct AxisTaps {
  int count = 1;
  std::array<int64_t, 4> place{0};  // -1: outside, where nothing is
  std::array<R, 4> weight{1};
  std::array<R, 4> slope{0};
};

template <class R>
int64_t PlaceAt(R position, int64_t size) {
  return position >= 0 && position < static_cast<R>(size) ? static_cast<int64_t>(position) : -1;
}

struct Sampler {
  GridSamplerInterpolation interpolation;
  GridSamplerPadding padding;
  bool align_corners;
  int64_t dims;  // 2 or 3
  int64_t batch, channels;
  std::array<int64_t, 3> in{1, 1, 1};  // depth, height, width
  int64_t positions = 1;               // of the output, each image or volume

  Sampler(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation_mode, int64_t padding_mode, bool align)
      : interpolation(static_cast<GridSamplerInterpolation>(interpolation_mode)),
        padding(static_cast<GridSamplerPadding>(padding_mode)),
        align_corners(align),
        dims(input.dim() - 2),
        batch(input.size(0)),
        channels(input.size(1)) {
    for (int64_t d = 0; d < dims; ++d) {
      in[static_cast<size_t>(3 - dims + d)] = input.size(2 + d);
      positions *= grid.size(1 + d);
    }
  }
  int64_t inputs() const { return in[0] * in[1] * in[2]; }

  template <class R>
  AxisTaps<R> TapsAt(R coordinate, int64_t size) const {
    if (coordinate != coordinate) coordinate = -1;  // as torch documents NaN
    AxisTaps<R> taps;
    R by_coordinate = 0;
    if (interpolation == GridSamplerInterpolation::Bicubic) {
      const R x = at::native::grid_sampler_unnormalize_set_grad(coordinate, size, align_corners, &by_coordinate);
      const R first = std::floor(x) - 1;
      taps.count = 4;
      at::native::get_cubic_upsample_coefficients(taps.weight.data(), x - first - 1);
      at::native::get_cubic_coefficients_grad(taps.slope.data(), x - first - 1);
      for (size_t i = 0; i < 4; ++i) {
        const R position = first + static_cast<R>(i);
        taps.place[i] = PlaceAt(at::native::compute_coordinates(position, size, padding, align_corners), size);
        taps.slope[i] *= -by_coordinate;
      }
      return taps;
    }
    const R x = at::native::grid_sampler_compute_source_index_set_grad(coordinate, size, padding, align_corners,
                                                                       &by_coordinate);
    if (interpolation == GridSamplerInterpolation::Nearest) {
      taps.place[0] = PlaceAt(std::nearbyint(x), size);
      return taps;
    }
    const R low = std::floor(x);
    taps.count = 2;
    taps.place = {PlaceAt(low, size), PlaceAt(low + 1, size)};
    taps.weight = {low + 1 - x, x - low};
    taps.slope = {-by_coordinate, by_coordinate};
    return taps;
  }

  // Of one point of the grid, whose coordinates are in the order width, height, depth.
  template <class T>
  std::array<AxisTaps<Real<T>>, 3> TapsOf(const T* point) const {
    std::array<AxisTaps<Real<T>>, 3> taps;
    for (int64_t d = 0; d < dims; ++d) {
      const auto axis = static_cast<size_t>(2 - d);
      taps[axis] = TapsAt(static_cast<Real<T>>(point[d]), in[axis]);
    }
    return taps;
  }

  // f(place in the plane, weight, slopes by depth, height and width) for each tap that is inside.
  template <class R, class F>
  void ForEachTap(const std::array<AxisTaps<R>, 3>& taps, F f) const {
    const auto index = [](int i) { return static_cast<size_t>(i); };
    for (int z = 0; z < taps[0].count; ++z)
      for (int y = 0; y < taps[1].count; ++y)
        for (int x = 0; x < taps[2].count; ++x) {
          const int64_t deep = taps[0].place[index(z)], high = taps[1].place[index(y)], wide = taps[2].place[index(x)];
          if (deep < 0 || high < 0 || wide < 0) continue;
          const R a = taps[0].weight[index(z)], b = taps[1].weight[index(y)], c = taps[2].weight[index(x)];
          f((deep * in[1] + high) * in[2] + wide, a * b * c,
            std::array<R, 3>{taps[0].slope[index(z)] * b * c, a * taps[1].slope[index(y)] * c,
                             a * b * taps[2].slope[index(x)]});
        }
  }
};

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

at::Tensor GridSample(const at::Tensor& input, const at::Tensor& grid, int64_t interpolation_mode, int64_t padding_mode,
                      bool align_corners) {
  CheckGrid(input, grid, interpolation_mode);
  std::vector<int64_t> sizes = input.sizes().vec();
  for (size_t d = 2; d < sizes.size(); ++d) sizes[d] = grid.sizes()[d - 1];
  at::Tensor out = Empty(sizes, input.scalar_type(), input);
  if (out.numel() == 0) return out;
  const at::Tensor x = Dense(input), points = Dense(grid);
  DispatchFloats(input.scalar_type(), [&]<class T>(T) {
    using R = Real<T>;
    StreamOf(out).Launch("grid_sampler", [sampler = Sampler(x, points, interpolation_mode, padding_mode, align_corners),
                                          from = static_cast<const T*>(x.const_data_ptr()),
                                          grid_at = static_cast<const T*>(points.const_data_ptr()),
                                          to = static_cast<T*>(out.mutable_data_ptr())] {
      const int64_t inputs = sampler.inputs(), positions = sampler.positions;
      ParallelFor(sampler.batch * positions, 256, [&](int64_t begin, int64_t end) {
        std::vector<std::pair<int64_t, R>> taps;
        for (int64_t i = begin; i < end; ++i) {
          taps.clear();
          sampler.ForEachTap(sampler.TapsOf(grid_at + i * sampler.dims),
                             [&](int64_t place, R weight, const auto&) { taps.emplace_back(place, weight); });
          for (int64_t c = 0; c < sampler.channels; ++c) {
            const int64_t plane = i / positions * sampler.channels + c;
            R sum = 0;
            for (const auto& [place, weight] : taps) sum += weight * static_cast<R>(from[plane * inputs + place]);
            to[plane * positions + i % positions] = static_cast<T>(sum);
          }
        }
      });
    });
  });
  return out;
}

// Points of one image meet in its places, so that images, not points, are what is done in parallel.
std::tuple<at::Tensor, at::Tensor> GridSampleBackward(const at::Tensor& grad, const at::Tensor& input,
                                                      const at::Tensor& grid, int64_t interpolation_mode,
                                                      int64_t padding_mode, bool align_corners,
                                                      std::array<bool, 2> wanted) {
  CheckGrid(input, grid, interpolation_mode);
  const Sampler sampler(input, grid, interpolation_mode, padding_mode, align_corners);
  TORCH_CHECK(grad.dim() == input.dim() && grad.numel() == sampler.batch * sampler.channels * sampler.positions,
              "grid_sampler_backward(): expected a gradient for a grid of ", grid.sizes(), ", got ", grad.sizes());
  const at::ScalarType dtype = input.scalar_type();
  at::Tensor by_grid = Empty(grid.sizes(), dtype, grid);
  const at::Tensor by_input = wanted[0] ? Empty(input.sizes(), AccumulateType(dtype), input).zero_() : at::Tensor();
  if (grad.numel() == 0) by_grid.zero_();
  if (grad.numel() > 0) {
    const at::Tensor x = Dense(input), points = Dense(grid), g = Dense(grad, dtype);
    DispatchFloats(dtype, [&]<class T>(T) {
      using R = Real<T>;
      StreamOf(x).Launch(
          "grid_sampler_backward",
          [sampler, from = static_cast<const T*>(x.const_data_ptr()),
           grid_at = static_cast<const T*>(points.const_data_ptr()), slopes = static_cast<const T*>(g.const_data_ptr()),
           sums = wanted[0] ? static_cast<R*>(by_input.mutable_data_ptr()) : nullptr,
           to_grid = static_cast<T*>(by_grid.mutable_data_ptr())] {
            const int64_t inputs = sampler.inputs(), positions = sampler.positions, dims = sampler.dims;
            ParallelFor(sampler.batch, 1, [&](int64_t begin, int64_t end) {
              for (int64_t i = begin * positions; i < end * positions; ++i) {
                std::array<R, 3> by_axis{};
                sampler.ForEachTap(sampler.TapsOf(grid_at + i * dims), [&](int64_t place, R weight, const auto& slope) {
                  R along = 0;  // the gradient by this tap's weight
                  for (int64_t c = 0; c < sampler.channels; ++c) {
                    const int64_t plane = i / positions * sampler.channels + c;
                    const R flow = static_cast<R>(slopes[plane * positions + i % positions]);
                    along += flow * static_cast<R>(from[plane * inputs + place]);
                    if (sums != nullptr) sums[plane * inputs + place] += flow * weight;
                  }
                  for (size_t d = 0; d < 3; ++d) by_axis[d] += along * slope[d];
                });
                for (int64_t d = 0; d < dims; ++d)
                  to_grid[i * dims + d] = static_cast<T>(by_axis[static_cast<size_t>(2 - d)]);
              }
            });
          });
    });
  }
  return {wanted[0] ? by_input.to(dtype) : at::Tensor(), by_grid};
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

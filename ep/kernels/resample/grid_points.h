// Maps the points of a grid to the images or volumes [N, C, (D, H,) W] of an input, for GridSample and its gradient.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/resample/coordinate_taps.h"

namespace npu::resample {

// Accepts every spelling of a mode in any version of GridSample.
inline Sampling SamplingOf(const char* op, const Attributes& attributes) {
  const std::string mode = attributes.String("mode"), padding = attributes.String("padding_mode");
  Sampling how{Interpolation::kLinear, Padding::kZeros, attributes.Bool("align_corners")};
  if (mode == "nearest") {
    how.interpolation = Interpolation::kNearest;
  } else if (mode == "cubic" || mode == "bicubic") {
    how.interpolation = Interpolation::kCubic;
  } else {
    NPU_OP_CHECK(op, mode == "linear" || mode == "bilinear", "expected mode linear, nearest or cubic, got ", mode);
  }
  if (padding == "border") {
    how.padding = Padding::kBorder;
  } else if (padding == "reflection") {
    how.padding = Padding::kReflection;
  } else {
    NPU_OP_CHECK(op, padding == "zeros", "expected padding_mode zeros, border or reflection, got ", padding);
  }
  return how;
}

class GridSampler {
 public:
  static constexpr int kMaxDims = 3;

  GridSampler(const char* op, const Sampling& how, const Shape& input, const Shape& grid)
      : how_(how), dims_(input.rank() - 2) {
    NPU_OP_CHECK(op, dims_ >= 1 && dims_ <= kMaxDims, "expected an input [N, C, ...] of 1 to ", kMaxDims,
                 " spatial dimensions, got shape ", input);
    NPU_OP_CHECK(op, grid.rank() == input.rank() && grid[0] == input[0] && grid.back() == dims_,
                 "expected a grid of rank ", input.rank(), " with ", input[0], " images and ", dims_,
                 " coordinates a point, got shape ", grid, " for an input of shape ", input);
    for (int d = 0; d < dims_; ++d) {
      NPU_OP_CHECK(op, input[2 + d] > 0, "expected an input with non-empty spatial dimensions, got shape ", input);
      sizes_[kMaxDims - dims_ + d] = input[2 + d];
    }
    images_ = input[0];
    channels_ = input[1];
    pixels_ = input.Elements(2, input.rank());
    points_ = grid.Elements(1, grid.rank() - 1);
    output_ = Shape{images_, channels_};
    for (int d = 0; d < dims_; ++d) output_.push_back(grid[1 + d]);
  }

  const Shape& output() const { return output_; }
  const Sampling& how() const { return how_; }
  int dims() const { return dims_; }
  int64_t images() const { return images_; }
  int64_t channels() const { return channels_; }
  int64_t pixels() const { return pixels_; }  // of a plane of the input
  int64_t points() const { return points_; }  // of an image's grid, i.e. of a plane of the output
  // The number of points worth another thread, if each is processed for `channels` planes.
  int64_t PointGrain(int64_t channels) const {
    return std::max<int64_t>(1, 4096 / std::clamp<int64_t>(channels, 1, 4096));
  }

  // f(index in the plane, weight, its derivatives by depth, height and width) for each tap of a point that is inside.
  // The point's coordinates are in the order width, height, depth.
  template <class C, class G, class F>
  void ForEachTap(const G* point, const F& f) const {
    CoordinateTaps<C> taps[kMaxDims];
    for (int d = 0; d < dims_; ++d) {
      const int axis = kMaxDims - 1 - d;
      taps[axis] = TapsAt(static_cast<C>(Upcast(point[d])), sizes_[axis], how_);
    }
    const auto& [deep, high, wide] = taps;
    for (int z = 0; z < deep.count; ++z) {
      for (int y = 0; y < high.count; ++y) {
        if (deep.position[z] < 0 || high.position[y] < 0) continue;
        const int64_t row = (deep.position[z] * sizes_[1] + high.position[y]) * sizes_[2];
        const C a = deep.weight[z], b = high.weight[y];
        for (int x = 0; x < wide.count; ++x) {
          if (wide.position[x] < 0) continue;
          const C c = wide.weight[x];
          const C slopes[kMaxDims] = {deep.slope[z] * b * c, a * high.slope[y] * c, a * b * wide.slope[x]};
          f(row + wide.position[x], a * b * c, slopes);
        }
      }
    }
  }

 private:
  Sampling how_;
  int dims_;
  int64_t images_ = 0, channels_ = 0, pixels_ = 0, points_ = 0;
  int64_t sizes_[kMaxDims] = {1, 1, 1};  // depth, height, width
  Shape output_;
};

// The taps of a few points of one image, computed once for all its planes.
template <class C>
class TapBlock {
 public:
  static constexpr int64_t kPoints = 64;
  struct Tap {
    int64_t index;
    C weight;
  };

  template <class G>
  void Fill(const GridSampler& sampler, const G* grid, int64_t count) {
    taps_.clear();
    for (int64_t p = 0; p < count; ++p) {
      sampler.ForEachTap<C>(grid + p * sampler.dims(),
                            [&](int64_t index, C weight, const C*) { taps_.push_back({index, weight}); });
      ends_[p] = static_cast<int64_t>(taps_.size());
    }
  }
  const Tap* begin(int64_t p) const { return taps_.data() + (p == 0 ? 0 : ends_[p - 1]); }
  const Tap* end(int64_t p) const { return taps_.data() + ends_[p]; }

 private:
  std::vector<Tap> taps_;
  int64_t ends_[kPoints] = {};
};

inline std::vector<AttrDef> SamplingAttributes(const char* default_mode) {
  return {StringAttribute("mode", default_mode), StringAttribute("padding_mode", "zeros"),
          IntAttribute("align_corners", 0)};
}

}  // namespace npu::resample

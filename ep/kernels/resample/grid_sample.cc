// GridSample: reads images and volumes at the points of a grid.
#include <algorithm>
#include <string>
#include <type_traits>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/resample/grid_points.h"

namespace npu {
namespace {

using resample::GridSampler;
using resample::TapBlock;

// Samples the points [begin, end) of all images, in all channels.
template <class T, class G>
void SamplePoints(const GridSampler& sampler, const T* x, const G* grid, T* y, int64_t begin, int64_t end) {
  using C = std::common_type_t<ComputeType<T>, ComputeType<G>>;
  TapBlock<C> block;
  const int64_t points = sampler.points();
  for (int64_t i = begin, count = 0; i < end; i += count) {
    const int64_t image = i / points, first = i % points;
    count = std::min({TapBlock<C>::kPoints, end - i, points - first});
    block.Fill(sampler, grid + i * sampler.dims(), count);
    for (int64_t plane = image * sampler.channels(); plane < (image + 1) * sampler.channels(); ++plane) {
      const T* from = x + plane * sampler.pixels();
      T* to = y + plane * points + first;
      for (int64_t p = 0; p < count; ++p) {
        C sum = 0;
        for (const auto* tap = block.begin(p); tap != block.end(p); ++tap)
          sum += tap->weight * static_cast<C>(Upcast(from[tap->index]));
        to[p] = Rounded<T>(static_cast<ComputeType<T>>(sum));
      }
    }
  }
}

class GridSampleKernel final : public Kernel {
 public:
  explicit GridSampleKernel(const KernelInfo& info) : how_(resample::SamplingOf(kOp, info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    const TensorView x = ctx.Input(0), grid = ctx.Input(1);
    const GridSampler sampler(kOp, how_, x.shape, grid.shape);
    const TensorView y = ctx.Output(0, x.dtype, sampler.output());
    if (y.elements() == 0) return;
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      DispatchTypes(kOp, grid.dtype, FloatTypes{}, [&](auto grid_type) {
        using T = decltype(type);
        using G = decltype(grid_type);
        ctx.Launch(kOp, [sampler, from = x.as<const T>(), points = grid.as<const G>(), to = y.as<T>()] {
          ParallelFor(sampler.images() * sampler.points(), sampler.PointGrain(sampler.channels()),
                      [&](int64_t begin, int64_t end) { SamplePoints(sampler, from, points, to, begin, end); });
        });
      });
    });
  }

 private:
  static constexpr const char* kOp = "GridSample";
  resample::Sampling how_;
};

OpDef GridSampleDef(int since, int until, const char* default_mode) {
  return {
      .domain = "",
      .type = "GridSample",
      .since = since,
      .until = until,
      .inputs = {Input("X", kAllFloats), Input("grid", kAllFloats)},
      .outputs = {Output("Y", kAllFloats)},
      .attributes = resample::SamplingAttributes(default_mode),
      .make = MakeKernel<GridSampleKernel>,
      .unsupported = [](const NodeView& node) -> std::string {
        if (!node.rank_known[0]) return "";
        const size_t rank = node.shapes[0].size();
        return rank >= 3 && rank <= 2 + GridSampler::kMaxDims
                   ? ""
                   : "GridSample of " + std::to_string(rank) + " dimensions is not implemented; 3 to 5 are";
      },
  };
}

NPU_ONNX_KERNEL(GridSampleDef(16, 16, "bilinear"));
NPU_ONNX_KERNEL(GridSampleDef(20, 22, "linear"));

}  // namespace
}  // namespace npu

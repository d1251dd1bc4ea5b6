// The gradients of GridSample with respect to the grid and the input.
#include <algorithm>
#include <cstdint>

#include "ep/kernels/elementwise/types.h"
#include "ep/kernels/elementwise/upcast.h"
#include "ep/kernels/onnx_def.h"
#include "ep/kernels/op_check.h"
#include "ep/kernels/resample/grid_points.h"

namespace npu {
namespace {

using resample::GridSampler;
using resample::Interpolation;
using resample::TapBlock;

// The gradient with respect to the coordinates of the points [begin, end) of all images.
template <class T>
void GridGradient(const GridSampler& sampler, const T* y_grad, const T* x, const T* grid, T* grid_grad, int64_t begin,
                  int64_t end) {
  using C = ComputeType<T>;
  const int dims = sampler.dims();
  if (sampler.how().interpolation == Interpolation::kNearest) {  // a step function has slope 0, whatever is read
    std::fill(grid_grad + begin * dims, grid_grad + end * dims, Rounded<T>(C{0}));
    return;
  }
  for (int64_t i = begin; i < end; ++i) {
    const int64_t plane = i / sampler.points() * sampler.channels(), point = i % sampler.points();
    C sums[GridSampler::kMaxDims] = {};
    sampler.ForEachTap<C>(grid + i * dims, [&](int64_t index, C /*weight*/, const C* slopes) {
      C by_weight = 0;
      for (int64_t c = plane; c < plane + sampler.channels(); ++c)
        by_weight += Upcast(y_grad[c * sampler.points() + point]) * Upcast(x[c * sampler.pixels() + index]);
      for (int d = 0; d < GridSampler::kMaxDims; ++d) sums[d] += by_weight * slopes[d];
    });
    for (int d = 0; d < dims; ++d) grid_grad[i * dims + d] = Rounded<T>(sums[GridSampler::kMaxDims - 1 - d]);
  }
}

// The gradient with respect to the planes [begin, end) of all images. Several points may read one pixel, so each plane
// is summed by one thread, in the order of the points.
template <class T>
void InputGradient(const GridSampler& sampler, const T* y_grad, const T* grid, ComputeType<T>* sums, int64_t begin,
                   int64_t end) {
  using C = ComputeType<T>;
  const int64_t points = sampler.points(), pixels = sampler.pixels(), channels = sampler.channels();
  std::fill(sums + begin * pixels, sums + end * pixels, C{0});
  TapBlock<C> block;
  for (int64_t image = begin / channels; image * channels < end; ++image) {
    const int64_t first_plane = std::max(begin, image * channels), last_plane = std::min(end, (image + 1) * channels);
    for (int64_t first = 0; first < points; first += TapBlock<C>::kPoints) {
      const int64_t count = std::min(TapBlock<C>::kPoints, points - first);
      block.Fill(sampler, grid + (image * points + first) * sampler.dims(), count);
      for (int64_t plane = first_plane; plane < last_plane; ++plane) {
        for (int64_t p = 0; p < count; ++p) {
          const C g = Upcast(y_grad[plane * points + first + p]);
          for (const auto* tap = block.begin(p); tap != block.end(p); ++tap)
            sums[plane * pixels + tap->index] += g * tap->weight;
        }
      }
    }
  }
}

class GridSampleGradKernel final : public Kernel {
 public:
  explicit GridSampleGradKernel(const KernelInfo& info) : how_(resample::SamplingOf(kOp, info.attributes)) {}

  void Compute(OpContext& ctx) const override {
    const TensorView y_grad = ctx.Input(0), x = ctx.Input(1), grid = ctx.Input(2);
    const GridSampler sampler(kOp, how_, x.shape, grid.shape);
    NPU_OP_CHECK(kOp, grid.dtype == x.dtype, "expected a grid of ", NameOf(x.dtype), ", got ", NameOf(grid.dtype));
    NPU_OP_CHECK(kOp, y_grad.dtype == x.dtype && y_grad.shape == sampler.output(), "expected a gradient ",
                 NameOf(x.dtype), " of shape ", sampler.output(), ", got ", NameOf(y_grad.dtype), " of ", y_grad.shape);
    const TensorView grid_grad = ctx.Output(0, x.dtype, grid.shape);
    const TensorView x_grad = ctx.OutputRequested(1) ? ctx.Output(1, x.dtype, x.shape) : TensorView{};
    DispatchTypes(kOp, x.dtype, FloatTypes{}, [&](auto type) {
      using T = decltype(type);
      const T *g = y_grad.as<const T>(), *points = grid.as<const T>();
      if (grid_grad.elements() > 0) {
        ctx.Launch(kOp, [sampler, g, points, from = x.as<const T>(), to = grid_grad.as<T>()] {
          ParallelFor(sampler.images() * sampler.points(), sampler.PointGrain(sampler.channels()),
                      [&](int64_t begin, int64_t end) { GridGradient(sampler, g, from, points, to, begin, end); });
        });
      }
      if (x_grad && x_grad.elements() > 0) LaunchInputGradient(ctx, sampler, g, points, x_grad.as<T>());
    });
  }

 private:
  static constexpr const char* kOp = "GridSampleGrad";

  // Sums of 16-bit floats are computed in float and rounded once.
  template <class T>
  static void LaunchInputGradient(OpContext& ctx, const GridSampler& sampler, const T* y_grad, const T* grid,
                                  T* x_grad) {
    const int64_t planes = sampler.images() * sampler.channels(), pixels = sampler.pixels();
    const int64_t grain = std::max<int64_t>(1, 4096 / std::clamp<int64_t>(sampler.points(), 1, 4096));
    if constexpr (kIsHalf<T>) {
      auto* sums = static_cast<float*>(ctx.Workspace(BytesFor(DType::kFloat32, planes * pixels)));
      ctx.Launch(kOp, [=] {
        ParallelFor(planes, grain, [&](int64_t begin, int64_t end) {
          InputGradient(sampler, y_grad, grid, sums, begin, end);
          FromFloat(sums + begin * pixels, x_grad + begin * pixels, (end - begin) * pixels);
        });
      });
    } else {
      ctx.Launch(kOp, [=] {
        ParallelFor(planes, grain,
                    [&](int64_t begin, int64_t end) { InputGradient(sampler, y_grad, grid, x_grad, begin, end); });
      });
    }
  }

  resample::Sampling how_;
};

NPU_ONNX_KERNEL({
    .domain = "npu.aten",
    .type = "GridSampleGrad",
    .inputs = {Input("Y_grad", kAllFloats), Input("X", kAllFloats), Input("grid", kAllFloats)},
    .outputs = {Output("grid_grad", kAllFloats), OptionalOutput("X_grad", kAllFloats)},
    .attributes = resample::SamplingAttributes("linear"),
    .make = MakeKernel<GridSampleGradKernel>,
});

}  // namespace
}  // namespace npu
